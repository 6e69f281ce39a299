"""Put the measured numbers into docs/performance.md.

    python benchmarks/render.py

Each block `<!-- NAME -->` … `<!-- end -->` of the page is made from `benchmarks/results/NAME.json`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"


def table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def criterion(result: dict[str, Any]) -> str:
    rows = [
        [name, f"{result['milliseconds'][name]:.3g}", f"{result['against_plain'][name]:.2f}×"]
        for name in result["milliseconds"]
    ]
    where = f"{result['device']}, torch {result['torch']}, median of {result['rounds']} rounds."
    return f"{table(['loss', 'ms', 'against plain torch'], rows)}\n\n{where}"


BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {"criterion-cpu": criterion, "criterion-cuda": criterion}


def rendered(page: str) -> str:
    """Return the page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- {name} -->\n{BLOCKS[name](json.loads((RESULTS / f'{name}.json').read_text()))}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n(?:(?!<!-- end -->).*\n)*<!-- end -->", block, page)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
