"""What pages of measured numbers are made of: tables, and blocks `<!-- NAME -->` … `<!-- end -->` that scripts fill."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def fill(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return the page with new text in the blocks that are listed; other blocks stay as they are."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- {name} -->\n{blocks[name]()}\n<!-- end -->" if name in blocks else match[0]

    return re.sub(r"<!-- ([\w-]+) -->\n(?:(?!<!-- end -->).*\n)*<!-- end -->", block, page)


def each_result(folder: Path, text: Callable[[dict[str, Any], str], str]) -> str:
    """Return what a function says of each JSON file of a folder, given its content and its name."""
    parts = [text(json.loads(path.read_text(encoding="utf-8")), path.stem) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(parts) or "*Not measured yet.*"
