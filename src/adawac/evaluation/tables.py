"""Evaluations as tables: text for the console, Markdown, LaTeX, CSV and JSON files."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from adawac.errors import ConfigError
from adawac.evaluation.case_scores import DistanceUnit
from adawac.evaluation.comparison import (
    by_configuration,
    compare,
    differently_tested,
    known_seeds,
    over_seeds,
    repeated_seeds,
    to_dict,
)
from adawac.evaluation.evaluation_record import Evaluation
from adawac.files import explained, write_text

_TITLES = {
    "dice": "DSC",
    "hd95": "HD95",
    "assd": "ASSD",
    "surface_dice": "Surface DSC",
    "hd95_max_directed": "HD95 (larger direction)",
}
_SHARES = frozenset({"dice", "surface_dice", "dense_dice"})  # shown as percentages
_NONE = "–"
_FORMATS = (".csv", ".json", ".md", ".tex")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text: a title, a header, rows, and notes below it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def to_tables(evaluations: Sequence[Evaluation]) -> list[Table]:
    """Return the tables of each evaluation, then those that compare them."""
    tables = [table for evaluation in evaluations for table in _of_evaluation(evaluation)]
    if len(evaluations) > 1:
        tables.append(_seeds(evaluations))
    if len(by_configuration(evaluations)) > 1:
        tables += _comparisons(evaluations)
    return tables


def _metric_title(metric: str, unit: DistanceUnit) -> str:
    """Return what a metric is called in a table, with its unit."""
    return f"{_TITLES[metric]}, {'%' if metric in _SHARES else 'mm' if unit == 'mm' else 'voxels'}"


# -- one evaluation ---------------------------------------------------------------------------------------------------


def _of_evaluation(evaluation: Evaluation) -> Iterator[Table]:
    for index, metric in enumerate(evaluation.metrics):
        yield _scores(evaluation, metric, () if index else _notes(evaluation))
    yield _slices(evaluation)
    if evaluation.groups:
        yield _groups(evaluation)


def _scores(evaluation: Evaluation, metric: str, notes: tuple[str, ...]) -> Table:
    rows = [
        (
            summary.class_name,
            _spread(metric, summary.mean, summary.std),
            _range(_short(metric, summary.low), _short(metric, summary.high)),
            "/".join(_short(metric, x) for x in (summary.lower_quartile, summary.median, summary.upper_quartile)),
            f"{_short(metric, summary.worst)} {summary.worst_case}".strip(),
        )
        for summary in evaluation.summaries[metric]
    ]
    return Table(
        title=f"{evaluation.label}: {_metric_title(metric, evaluation.unit)}",
        header=("class", "mean ± std", "95 % interval", "quartiles", "worst, in case"),
        rows=rows,
        notes=notes,
    )


def _notes(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what was evaluated, and which structures were missed or invented: no mean shows that."""
    what = (
        f"{evaluation.dataset}, {evaluation.part}: {evaluation.num_cases} cases of {evaluation.num_patients} patients; "
        f"checkpoint {evaluation.checkpoint}; convention {evaluation.convention}."
    )
    *classes, mean = evaluation.summaries[evaluation.metrics[0]]
    counts = []
    for outcome in ("missed", "invented"):
        by_class = {summary.class_name: getattr(summary, outcome) for summary in classes}
        listed = ", ".join(f"{name}: {count}" for name, count in by_class.items() if count)
        counts.append(f"{getattr(mean, outcome)} {outcome}{f' ({listed})' if listed else ''}")
    if mean.skipped:
        counts.append(f"{mean.skipped} left out")
    return what, f"Structures: {', '.join(counts)}."


def _slices(evaluation: Evaluation) -> Table:
    area = "mm²" if evaluation.unit == "mm" else "pixels"
    rows = []
    for summary in evaluation.slice_summaries:
        share = f" ({100 * summary.sparse_found / summary.sparse_slices:.1f} %)" if summary.sparse_slices else ""
        rows.append(
            (
                summary.class_name,
                str(summary.dense_slices),
                _spread("dense_dice", summary.dense_dice, summary.dense_std),
                f"{summary.sparse_found} of {summary.sparse_slices}{share}",
                _NONE if math.isnan(summary.sparse_area) else f"{summary.sparse_area:.1f}",
            )
        )
    return Table(
        title=f"{evaluation.label}: slices",
        header=("class", "label-dense", "DSC by slice, %", "label-sparse: falsely found", f"mean area, {area}"),
        rows=rows,
    )


def _groups(evaluation: Evaluation) -> Table:
    rows = []
    for name, summaries in evaluation.groups.items():
        first = next(iter(summaries.values()))
        numbers = [_spread(metric, summary.mean, summary.std) for metric, summary in summaries.items()]
        rows.append((name or "unknown", str(first.num_cases), str(first.num_patients), *numbers))
    titles = [_metric_title(metric, evaluation.unit) for metric in evaluation.metrics]
    return Table(
        title=f"{evaluation.label}: groups, mean over classes",
        header=("group", "cases", "patients", *titles),
        rows=rows,
    )


# -- several ----------------------------------------------------------------------------------------------------------


def _seeds(evaluations: Sequence[Evaluation]) -> Table:
    """Return a row for each configuration and class, a column for each metric."""
    metrics, unit = evaluations[0].metrics, evaluations[0].unit
    cells: dict[tuple[int | None, str, str, str], dict[str, str]] = {}
    for seeds in over_seeds(evaluations):
        row = cells.setdefault((seeds.label, seeds.configuration, str(seeds.num_seeds), seeds.class_name), {})
        row[seeds.metric] = _spread(seeds.metric, seeds.mean, seeds.std)
    return Table(
        title="Mean over cases; ± standard deviation over seeds",
        header=("configuration", "runs", "class", *(_metric_title(metric, unit) for metric in metrics)),
        rows=[(*key[1:], *(row.get(metric, _NONE) for metric in metrics)) for key, row in cells.items()],
        notes=_notes_of_several(evaluations),
    )


def _notes_of_several(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Return whose numbers cannot be compared, and where more than the seed differs."""
    notes = [
        f"{name}: its runs were not tested on the same cases; ± is of cases and seeds together, and differences "
        "are of the patients that all its runs have."
        for name in differently_tested(evaluations)
    ]
    notes += [
        f"{name}: several of its runs have the same seed, so ± is not over as many seeds as there are runs; a run that "
        "was copied counts twice."
        for name in repeated_seeds(evaluations)
    ]
    datasets = list(dict.fromkeys(evaluation.dataset for evaluation in evaluations))
    if len(datasets) > 1:
        notes.append(
            f"Tested on several data sets ({', '.join(datasets)}): differences are between runs on one data set, "
            "because the patients of two are different people, whatever their names are."
        )
    return tuple(notes)


def _comparisons(evaluations: Sequence[Evaluation]) -> Iterator[Table]:
    comparisons, seeds = compare(evaluations), known_seeds(evaluations)
    unit = evaluations[0].unit
    for first, second in dict.fromkeys((comparison.first, comparison.second) for comparison in comparisons):
        rows = []
        for comparison in comparisons:
            if comparison.second == second:
                metric, difference = comparison.metric, comparison.difference
                row = (
                    _metric_title(metric, unit),
                    comparison.class_name,
                    _number(metric, difference.mean, "+.2f"),
                    _range(_number(metric, difference.low, "+.2f"), _number(metric, difference.high, "+.2f")),
                    _NONE if math.isnan(difference.p_value) else f"{difference.p_value:.2g}",
                    str(difference.num_patients),
                )
                rows.append(row)
        yield Table(
            title=f"{second} minus {first}",
            header=("metric", "class", "difference", "95 % interval", "p", "patients"),
            rows=rows,
            notes=(
                "By patient; p of a two-sided sign-flip permutation test, not corrected for the number of rows.",
                *_other_seeds({name: seeds[name] for name in (first, second)}),
            ),
        )


def _other_seeds(seeds: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield a note where two configurations were not run with the same seeds, which are then part of the difference."""
    if len({frozenset(numbers) for numbers in seeds.values()}) > 1 and all(seeds.values()):
        listed = "; ".join(f"{name}: {', '.join(map(str, sorted(set(numbers))))}" for name, numbers in seeds.items())
        yield f"Not the same seeds ({listed}): they are part of the difference. Compare runs of the same ones."


# -- numbers ----------------------------------------------------------------------------------------------------------


def _number(metric: str, value: float, shape: str = ".2f") -> str:
    return _NONE if math.isnan(value) else format(100 * value if metric in _SHARES else value, shape)


def _spread(metric: str, mean: float, std: float) -> str:
    return _number(metric, mean) if math.isnan(std) else f"{_number(metric, mean)} ± {_number(metric, std)}"


def _short(metric: str, value: float) -> str:
    """Return about three digits, which is enough beside a mean."""
    return _number(metric, value, ".0f" if metric not in _SHARES and value >= 99.95 else ".1f")


def _range(low: str, high: str) -> str:
    return _NONE if _NONE in (low, high) else f"{low} to {high}"


# -- text -------------------------------------------------------------------------------------------------------------


def to_markdown(tables: Sequence[Table]) -> str:
    """Return tables as Markdown."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    rule = "|---|" + "---:|" * (len(table.header) - 1)
    lines = [f"### {' '.join(table.title.split())}", "", line(table.header), rule, *(line(row) for row in table.rows)]
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def to_latex(tables: Sequence[Table]) -> str:
    """Return tables as LaTeX that needs no package."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        text = " & ".join(_escape(cell) for cell in cells)
        # Without the braces, [ and * would be read as an option of the line break before.
        return "  " + ("{}" if text.startswith(("[", "*")) else "") + text + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{' '.join(_escape(text) for text in (table.title + '.', *table.notes))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"  \hline",
            line(table.header),
            r"  \hline",
            *(line(row) for row in table.rows),
            r"  \hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


# -- files ------------------------------------------------------------------------------------------------------------


def check_out(path: Path) -> None:
    """Raise a `ConfigError` if tables could not be written to `path`: better now than after the work."""
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"Expected a file that ends in {', '.join(_FORMATS)}, but got {path}. Name the format by the ending."
        )
    if path.is_dir():
        raise ConfigError(f"Expected a file for the tables, but {path} is a folder. Name a file in it.")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"Expected to write {path}, but {folder} is not a writable folder. Name another.")


def write_tables(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write the tables of evaluations in the format that the file's ending names.

    CSV has a row for each run, metric and class, with all digits; JSON has everything.
    """
    check_out(path)
    texts = {
        ".csv": lambda: _csv(evaluations),
        ".json": lambda: json.dumps(to_dict(evaluations), indent=2, allow_nan=False) + "\n",
        ".md": lambda: to_markdown(to_tables(evaluations)),
        ".tex": lambda: to_latex(to_tables(evaluations)),
    }
    with explained(ConfigError, str(path), "Name another file."):
        write_text(path, texts[path.suffix]())


def _csv(evaluations: Sequence[Evaluation]) -> str:
    rows = [
        {"run": str(evaluation.run.folder), "evaluation": evaluation.name, "unit": evaluation.unit, **asdict(summary)}
        for evaluation in evaluations
        for summaries in evaluation.summaries.values()
        for summary in summaries
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
