"""A comparison with the paper as files: Markdown, LaTeX, JSON, and one HTML page that needs nothing else."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adawac.evaluation.plan import IN_VOXELS
from adawac.evaluation.tables import Table, to_latex, to_markdown
from adawac.files import write_text
from adawac.reproduction.grid_data import MARK
from adawac.reproduction.jobs import Job, JobOutcome
from adawac.reproduction.paper_tables import Cell, Ordering, PaperComparison

_PAGE = Path(__file__).with_name("page.html")


def mark_of(comparison: PaperComparison, quick: bool) -> str:
    """Return the warning above numbers that must not be compared with the paper's; nothing above others."""
    return MARK if quick else comparison.mark


def to_html(tables: Sequence[Table], comparison: PaperComparison, *, quick: bool) -> str:
    """Return the page: the paper's numbers, ours and the differences below each other, then the order of the methods.

    Args:
        tables: What `adawac.reproduction.comparison_files.to_tables` returns.
        comparison: What they are of.
        quick: Mark everything as no number of the paper.
    """
    numbers, *orders = tables
    mark = mark_of(comparison, quick)
    parts = {
        "title": _escape(numbers.title),
        "mark": f'<p class="mark">{_escape(mark)}</p>' if mark else "",
        "numbers": _numbers(numbers, len(comparison.axes), len(numbers.rows) // len(comparison.lines)),
        "order": "".join(_order(table) for table in orders),
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
            body = "".join(_cell(cell) for cell in cells)
            lines.append(f'<tr class="{kind}"><th scope="row">{kind if each > 1 else names}</th>{body}</tr>')
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


_NONE = "missing"


def write_comparison(
    comparison: PaperComparison, folder: Path, *, quick: bool, failures: Mapping[Job, JobOutcome]
) -> list[Path]:
    """Write the comparison in every format, and return the files."""
    stem = f"{comparison.name}-quick" if quick else comparison.name
    tables, mark = to_tables(comparison, quick=quick), mark_of(comparison, quick)
    texts = {
        ".md": (f"> **{mark}**\n\n" if mark else "") + to_markdown([_plain_text(table) for table in tables]),
        ".tex": (f"% {mark}\n" if mark else "") + to_latex(tables),
        ".html": to_html(tables, comparison, quick=quick),
        ".json": json.dumps(to_dict(comparison, quick=quick, failures=failures), indent=2, allow_nan=False) + "\n",
    }
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{stem}{ending}")
        write_text(paths[-1], text)
    return paths


def to_tables(comparison: PaperComparison, *, quick: bool, columns: Sequence[str] | None = None) -> list[Table]:
    """Return the numbers and the orderings as tables of text.

    Args:
        comparison: What to show.
        quick: Mark everything as no number of the paper.
        columns: Which columns; all by default.
    """
    grid = comparison.grid
    shown = [name for name in grid.columns if columns is None or name in columns]
    rows: list[tuple[str, ...]] = []
    for line in comparison.lines:
        cells = [cell for cell in line.cells if cell.column in shown]
        names = tuple(_shown(line.labels[axis]) for axis in comparison.axes)
        kinds = {"paper": _paper, _ours(quick): _own, "difference": _difference}
        for kind, text in kinds.items() if grid.paper else [(_ours(quick), _own)]:
            rows.append((*names, kind, *(text(cell) for cell in cells)))
    numbers = Table(
        title=_title(comparison, quick),
        header=(*comparison.axes, "", *(_heading(comparison, name) for name in shown)),
        rows=rows,
        notes=_notes(comparison, quick),
    )
    return [numbers, _order_table(comparison, quick)] if comparison.orderings else [numbers]


def _order_table(comparison: PaperComparison, quick: bool) -> Table:
    others = [axis for axis in comparison.grid.dimensions if axis != comparison.grid.compared]
    shown = [axis for axis in others if axis in comparison.axes]
    rows: list[tuple[str, ...]] = []
    for ordering in comparison.orderings:
        labels = dict(zip(others, ordering.labels, strict=True))
        names = [_shown(labels[axis]) for axis in shown]
        tau = "–" if math.isnan(ordering.tau) else f"{ordering.tau:.2f}"
        # Names without a number of ours are in neither order; then it is not the paper's number that is missing.
        ours = _ranks(ordering.ours) or _NONE
        beside = (_ranks(ordering.paper) or "–", ours, tau, _verdict(ordering))
        rows.append((*names, ordering.column, *(beside if comparison.grid.paper else (ours,))))
    beside = ("paper", _ours(quick), "Kendall tau", "same order")
    return Table(
        title=_shown(f"{comparison.name}: best to worst") + (" (quick)" if quick else ""),
        header=(*shown, "by", *(beside if comparison.grid.paper else (_ours(quick),))),
        rows=rows,
        notes=tuple(filter(None, (mark_of(comparison, quick),))),
    )


def _ranks(names: Sequence[Sequence[str]]) -> str:
    return _shown(" > ".join(" = ".join(equal) for equal in names))


def _verdict(ordering: Ordering) -> str:
    if ordering.agrees is None:
        return "–"
    without = f", without {', '.join(ordering.left_out)}" if ordering.left_out else ""
    partly = f", with some seeds only of {', '.join(ordering.partial)}" if ordering.partial else ""
    return _shown(f"{'yes' if ordering.agrees else 'no'}{without}{partly}")


def _title(comparison: PaperComparison, quick: bool) -> str:
    title = comparison.grid.title or "ours beside the paper"
    return _shown(f"{comparison.name}: {title}") + (" (quick)" if quick else "")


def _ours(quick: bool) -> str:
    return "quick" if quick else "ours"


def _heading(comparison: PaperComparison, name: str) -> str:
    metric = next(column.metric for column in comparison.grid.named_columns if column.name == name)
    return _shown(f"{name}, %" if metric in ("dice", "surface_dice") else f"{name}, {_unit(comparison)}")


def _unit(comparison: PaperComparison) -> str:
    usual = "voxel" if comparison.grid.convention in IN_VOXELS else "mm"
    return (comparison.unit or usual).replace("voxel", "voxels")


def _notes(comparison: PaperComparison, quick: bool) -> tuple[str, ...]:
    grid = comparison.grid
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    notes = [f"Ours: mean ± standard deviation (n - 1) over the seeds {seeds}; convention {grid.convention}."]
    notes += comparison.notes
    notes += [f"Paper: {grid.source}."] if grid.source else []
    notes += [grid.note] if grid.note else []
    notes += [f"{comparison.missing} cells are missing: no finished run has that number."] if comparison.missing else []
    if comparison.partial:
        notes.append(
            f"{comparison.partial} cells are means of some seeds only, as they say: other runs failed, or are not done."
        )
    return tuple(filter(None, (mark_of(comparison, quick), *(_shown(note) for note in notes))))


def _shown(text: str) -> str:
    """Return a name as it can stand in a table: what steers a terminal or breaks a line is escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _paper(cell: Cell) -> str:
    return "–" if cell.paper is None else _spread(cell.paper.mean, cell.paper.std)


def _own(cell: Cell) -> str:
    if math.isnan(cell.mean):
        return _NONE
    return _spread(cell.mean, cell.std) + (f" ({cell.count} of {cell.seeds} seeds)" if cell.partial else "")


def _difference(cell: Cell) -> str:
    return "–" if math.isnan(cell.difference) else f"{cell.difference:+.2f}"


def _spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def _plain_text(table: Table) -> Table:
    """Return a table whose names no reader of Markdown takes for HTML or for markup."""

    def clean(text: str) -> str:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return "".join(f"\\{letter}" if letter in "*_`[]\\" else letter for letter in text)

    return Table(
        title=clean(table.title),
        header=tuple(map(clean, table.header)),
        rows=[tuple(map(clean, row)) for row in table.rows],
        notes=tuple(map(clean, table.notes)),
    )


def to_dict(comparison: PaperComparison, *, quick: bool, failures: Mapping[Job, JobOutcome]) -> dict[str, Any]:
    """Return everything as plain values for JSON; null stands for what is missing."""
    grid = comparison.grid
    lines = []
    for line in comparison.lines:
        cells = [
            {
                "column": cell.column,
                "paper": None if cell.paper is None else {"mean": cell.paper.mean, "std": cell.paper.std},
                "ours": _plain_own(cell),
                "difference": _plain(cell.difference),
            }
            for cell in line.cells
        ]
        runs = [{"seed": job.config.seed, "folder": str(job.folder), "state": job.state} for job in line.jobs]
        lines.append({"labels": line.labels, "cells": cells, "runs": runs})
    orderings = [
        {
            "labels": list(ordering.labels),
            "column": ordering.column,
            "paper": [list(names) for names in ordering.paper],
            "ours": [list(names) for names in ordering.ours],
            "kendall_tau": _plain(ordering.tau),
            "agrees": ordering.agrees,
            "left_out": list(ordering.left_out),
            "partial": list(ordering.partial),
        }
        for ordering in comparison.orderings
    ]
    return {
        "name": comparison.name,
        "quick": quick,
        "warning": mark_of(comparison, quick) or None,
        "title": grid.title,
        "source": grid.source,
        "note": grid.note,
        "notes": list(comparison.notes),
        "convention": grid.convention,
        "seeds": list(comparison.seeds),
        "rows": lines,
        "orderings": orderings,
        "missing": comparison.missing,
        "partial": comparison.partial,
        "unit": comparison.unit or None,
        "failures": [
            {"run": job.name, "reason": outcome.reason, "log": str(job.log)} for job, outcome in failures.items()
        ],
    }


def _plain_own(cell: Cell) -> dict[str, Any] | None:
    """Return our number with how many seeds it is of, and of how many it was to be."""
    numbers = {"mean": cell.mean, "std": _plain(cell.std), "seeds": cell.count, "planned_seeds": cell.seeds}
    return numbers if cell.count else None


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
