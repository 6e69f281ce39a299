"""A comparison as one HTML page that needs nothing else."""

import html
from collections.abc import Sequence
from pathlib import Path

from adawac.evaluation.tables import Table
from adawac.reproduction.quick import MARK
from adawac.reproduction.tables import Comparison

__all__ = ["mark_of", "to_html"]

_PAGE = Path(__file__).with_name("page.html")


def mark_of(comparison: Comparison, quick: bool) -> str:
    """Return what stands above numbers that are not to be held against the paper's; nothing above others."""
    return MARK if quick else comparison.mark


def to_html(tables: Sequence[Table], comparison: Comparison, *, quick: bool) -> str:
    """Return the page: the paper's numbers, ours and the differences below each other, then the order of the methods.

    Args:
        tables: What `adawac.reproduction.rendering.to_tables` returns.
        comparison: What they are of.
        quick: Mark everything as no number of the paper.
    """
    numbers, *orders = tables
    mark = mark_of(comparison, quick)
    parts = {
        "title": _escape(numbers.title),
        "mark": f'<p class="mark">{_escape(mark)}</p>' if mark else "",
        "numbers": _numbers(numbers, len(comparison.axes), len(numbers.rows) // len(comparison.lines)),
        "order": "".join(_order(one) for one in orders),
        "notes": "".join(f"<p>{_escape(note)}</p>" for note in numbers.notes if note != mark),
    }
    page = _PAGE.read_text(encoding="utf-8")
    # In one pass: a name that looks like one of our marks stays a name.
    pieces = page.split("<!-- ")
    return pieces[0] + "".join(_filled(piece, parts) for piece in pieces[1:])


def _filled(piece: str, parts: dict[str, str]) -> str:
    name, _, rest = piece.partition(" -->")
    return parts[name] + rest


def _numbers(table: Table, axes: int, each: int) -> str:
    """Return the table with the names of each row standing once, above its `each` lines, or beside a single one."""
    bodies = []
    for first in range(0, len(table.rows), each):
        names = _escape(_joined(table.rows[first][:axes]))
        span = len(table.header) - axes
        group = f'<tr><th scope="rowgroup" colspan="{span}"><span>{names}</span></th></tr>' if each > 1 else ""
        lines = []
        for row in table.rows[first : first + each]:
            kind, *cells = row[axes:]
            told = "".join(_cell(cell) for cell in cells)
            lines.append(f'<tr class="{kind}"><th scope="row">{kind if each > 1 else names}</th>{told}</tr>')
        bodies.append(f"<tbody>{group}{''.join(lines)}</tbody>")
    head = _head([_joined(table.header[:axes])], ' class="name"') + _head(table.header[axes + 1 :])
    return f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table>"


def _joined(names: Sequence[str]) -> str:
    return " · ".join(names)


def _cell(text: str) -> str:
    empty = ' class="missing"' if text == "missing" else ""
    return f"<td{empty}>{_escape(text)}</td>"


def _order(table: Table) -> str:
    rows = "".join(f"<tr>{''.join(_order_cell(cell) for cell in row)}</tr>" for row in table.rows)
    body = f'<table class="order"><thead><tr>{_head(table.header)}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<h2>Best to worst</h2><div class="wide">{body}</div>'


def _order_cell(text: str) -> str:
    ranked = ' class="ranks"' if " > " in text else ""
    return f"<td{ranked}>{_escape(text)}</td>"


def _head(names: Sequence[str], kind: str = "") -> str:
    return "".join(f'<th scope="col"{kind}>{_escape(name)}</th>' for name in names)


def _escape(text: str) -> str:
    return html.escape(text)
