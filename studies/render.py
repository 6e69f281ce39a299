"""Put the studies' numbers into their pages, the overview of all and the first pages: `python -m studies.render`."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.pages import fill
from studies import page
from studies.acdc import analyses
from studies.layout import ROOT, Layout, read_layout, studies

OVERVIEW = ROOT / "docs" / "results" / "index.md"
README = ROOT / "README.md"
SHARED = [README, ROOT / "docs" / "index.md", OVERVIEW]
"""Pages with blocks of several studies."""
ORDER = ("synapse", "lgg", "acdc")
"""The studies that the overview quotes."""


def texts(layouts: list[Layout]) -> dict[str, str]:
    """Return the text of every block of every study."""
    quoted = {layout.name: layout for layout in layouts}
    ordered = [quoted[name] for name in ORDER]
    made = {
        "expect": page.expectations(ordered, OVERVIEW, quoted["defaults"]),
        "expect-first": page.headlines(ordered, README, quoted["defaults"]),
    }
    for layout in layouts:
        made |= page.blocks(layout, layout.entries())
        if layout.name == "acdc":
            made |= analyses.blocks(layout)
    return made


def pages(layouts: list[Layout]) -> list[Path]:
    """Return every page that has such blocks."""
    return [*SHARED, *(layout.page for layout in layouts)]


def rendered(text: str, made: Mapping[str, str]) -> str:
    """Return a page's text with every block made anew."""
    return fill(text, {name: lambda block=block: block for name, block in made.items()})


if __name__ == "__main__":
    layouts = [read_layout(study) for study in studies()]
    made = texts(layouts)
    for path in pages(layouts):
        path.write_text(rendered(path.read_text(), made))
