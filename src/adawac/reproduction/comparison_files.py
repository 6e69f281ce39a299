"""A comparison with the paper as files: Markdown, LaTeX, JSON, and one HTML page that needs nothing else."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from adawac.evaluation.plan import IN_VOXELS
from adawac.evaluation.tables import Table, to_latex, to_markdown
from adawac.files import write_text
from adawac.reproduction.jobs import Job, JobOutcome
from adawac.reproduction.paper_tables import Cell, Ordering, PaperComparison
from adawac.runs.layout import strict

_PAGE = Path(__file__).with_name("page.html")
_NONE = "missing"


def to_html(tables: Sequence[Table], comparison: PaperComparison) -> str:
    """Return the page: the paper's numbers, ours and the differences below each other, then the order of the methods.

    `tables` is what `to_tables` returns for the comparison.
    """
    (numbers, *orders), mark = tables, comparison.mark
    parts = {
        "title": escape(numbers.title),
        "mark": f'<p class="mark">{escape(mark)}</p>' if mark else "",
        "numbers": _numbers(numbers, len(comparison.axes), len(numbers.rows) // len(comparison.lines)),
        "order": "".join(_order(table) for table in orders),
        "notes": "".join(f"<p>{escape(note)}</p>" for note in numbers.notes if note != mark),
    }
    # In one pass: a name that looks like one of our marks stays a name.
    return re.sub("<!-- ([a-z]+) -->", lambda place: parts[place[1]], _PAGE.read_text(encoding="utf-8"))


def _numbers(table: Table, axes: int, each: int) -> str:
    """Return the table with the names of each row standing once, above its `each` lines, or beside a single one."""
    bodies = []
    for first in range(0, len(table.rows), each):
        names = escape(" · ".join(table.rows[first][:axes]))
        span = len(table.header) - axes
        group = f'<tr><th scope="rowgroup" colspan="{span}"><span>{names}</span></th></tr>' if each > 1 else ""
        lines = []
        for row in table.rows[first : first + each]:
            kind, *cells = row[axes:]
            body = "".join(_cell(cell, "missing" if cell == _NONE else "") for cell in cells)
            lines.append(f'<tr class="{kind}"><th scope="row">{kind if each > 1 else names}</th>{body}</tr>')
        bodies.append(f"<tbody>{group}{''.join(lines)}</tbody>")
    head = _head([" · ".join(table.header[:axes])], ' class="name"') + _head(table.header[axes + 1 :])
    return f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table>"


def _cell(text: str, kind: str) -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _order(table: Table) -> str:
    rows = [[_cell(cell, "ranks" if " > " in cell else "") for cell in row] for row in table.rows]
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    body = f'<table class="order"><thead><tr>{_head(table.header)}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<h2>Best to worst</h2><div class="wide">{body}</div>'


def _head(names: Sequence[str], kind: str = "") -> str:
    return "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name in names)


def write_comparison(comparison: PaperComparison, folder: Path, failures: Mapping[Job, JobOutcome]) -> list[Path]:
    """Write the comparison in every format, and return the files."""
    stem = f"{comparison.name}-quick" if comparison.quick else comparison.name
    tables, mark = to_tables(comparison), comparison.mark
    texts = {
        ".md": (f"> **{mark}**\n\n" if mark else "") + to_markdown([_plain_text(table) for table in tables]),
        ".tex": (f"% {mark}\n" if mark else "") + to_latex(tables),
        ".html": to_html(tables, comparison),
        ".json": json.dumps(to_dict(comparison, failures), indent=2, allow_nan=False) + "\n",
    }
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{stem}{ending}")
        write_text(paths[-1], text)
    return paths


def to_tables(comparison: PaperComparison, columns: Sequence[str] | None = None) -> list[Table]:
    """Return the numbers and the orderings as tables of text, with all columns unless some are given."""
    grid, ours = comparison.grid, _ours(comparison)
    shown = [name for name in grid.columns if columns is None or name in columns]
    rows: list[tuple[str, ...]] = []
    for line in comparison.lines:
        cells = [cell for cell in line.cells if cell.column in shown]
        names = tuple(_shown(line.labels[axis]) for axis in comparison.axes)
        kinds = {"paper": _paper, ours: _own, "difference": _difference}
        for kind, text in kinds.items() if grid.paper else [(ours, _own)]:
            rows.append((*names, kind, *(text(cell) for cell in cells)))
    numbers = Table(
        title=_title(comparison, grid.title or "ours beside the paper"),
        header=(*comparison.axes, "", *(_heading(comparison, name) for name in shown)),
        rows=rows,
        notes=_notes(comparison),
    )
    return [numbers, _order_table(comparison)] if comparison.orderings else [numbers]


def _order_table(comparison: PaperComparison) -> Table:
    others = [axis for axis in comparison.grid.dimensions if axis != comparison.grid.compared]
    shown = [axis for axis in others if axis in comparison.axes]
    rows: list[tuple[str, ...]] = []
    for ordering in comparison.orderings:
        labels = dict(zip(others, ordering.labels, strict=True))
        names = [_shown(labels[axis]) for axis in shown]
        tau = "–" if math.isnan(ordering.kendall_tau) else f"{ordering.kendall_tau:.2f}"
        # Names without a number of ours are in neither order; then it is not the paper's number that is missing.
        ours = _ranks(ordering.ours) or _NONE
        beside = (_ranks(ordering.paper) or "–", ours, tau, _verdict(ordering))
        rows.append((*names, ordering.column, *(beside if comparison.grid.paper else (ours,))))
    beside = ("paper", _ours(comparison), "Kendall tau", "same order")
    return Table(
        title=_title(comparison, "best to worst"),
        header=(*shown, "by", *(beside if comparison.grid.paper else beside[1:2])),
        rows=rows,
        notes=(comparison.mark,) if comparison.mark else (),
    )


def _ranks(names: Sequence[Sequence[str]]) -> str:
    return _shown(" > ".join(" = ".join(equal) for equal in names))


def _verdict(ordering: Ordering) -> str:
    if ordering.agrees is None:
        return "–"
    without = f", without {', '.join(ordering.left_out)}" if ordering.left_out else ""
    partly = f", with some seeds only of {', '.join(ordering.partial)}" if ordering.partial else ""
    return _shown(f"{'yes' if ordering.agrees else 'no'}{without}{partly}")


def _title(comparison: PaperComparison, text: str) -> str:
    return _shown(f"{comparison.name}: {text}") + (" (quick)" if comparison.quick else "")


def _ours(comparison: PaperComparison) -> str:
    return "quick" if comparison.quick else "ours"


def _heading(comparison: PaperComparison, name: str) -> str:
    metric = next(column.metric for column in comparison.grid.named_columns if column.name == name)
    return _shown(f"{name}, %" if metric in ("dice", "surface_dice") else f"{name}, {_unit(comparison)}")


def _unit(comparison: PaperComparison) -> str:
    usual = "voxel" if comparison.grid.convention in IN_VOXELS else "mm"
    return (comparison.unit or usual).replace("voxel", "voxels")


def _notes(comparison: PaperComparison) -> tuple[str, ...]:
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
    return tuple(filter(None, (comparison.mark, *(_shown(note) for note in notes))))


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


def to_dict(comparison: PaperComparison, failures: Mapping[Job, JobOutcome]) -> dict[str, Any]:
    """Return everything as plain values for JSON; null stands for what is missing."""
    grid = comparison.grid
    lines = []
    for line in comparison.lines:
        cells = [
            {
                "column": cell.column,
                "paper": None if cell.paper is None else asdict(cell.paper),
                "ours": {"mean": cell.mean, "std": cell.std, "seeds": cell.count, "planned_seeds": cell.seeds}
                if cell.count
                else None,
                "difference": cell.difference,
            }
            for cell in line.cells
        ]
        runs = [{"seed": job.config.seed, "folder": job.folder, "state": job.state} for job in line.jobs]
        lines.append({"labels": line.labels, "cells": cells, "runs": runs})
    return strict(  # type: ignore[no-any-return]
        {
            "name": comparison.name,
            "quick": comparison.quick,
            "warning": comparison.mark or None,
            "title": grid.title,
            "source": grid.source,
            "note": grid.note,
            "notes": comparison.notes,
            "convention": grid.convention,
            "seeds": comparison.seeds,
            "rows": lines,
            "orderings": [asdict(ordering) | {"agrees": ordering.agrees} for ordering in comparison.orderings],
            "missing": comparison.missing,
            "partial": comparison.partial,
            "unit": comparison.unit or None,
            "failures": [{"run": job.name, "reason": end.reason, "log": job.log} for job, end in failures.items()],
        }
    )
