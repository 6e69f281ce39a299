"""Evaluations as tables: text for the console, Markdown, LaTeX, CSV and JSON files."""

import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from adawac.evaluation.evaluation_record import Evaluation, PredictionFolder
from adawac.evaluation.statistics import VOLUMES, Detection, Summary, means_by
from adawac.files import explained, write_csv, write_text

if TYPE_CHECKING:
    from adawac.evaluation.folder_scores import Fault

_TITLES = {
    "dice": "DSC",
    "hd95": "HD95",
    "assd": "ASSD",
    "surface_dice": "Surface DSC",
    "hd95_max_directed": "HD95 (larger direction)",
}
_SHARES = frozenset({"dice", "surface_dice", "dense_dice"})  # shown as percentages
_NONE = "–"
_FORMATS = (".csv", ".json", ".md", ".tex", ".html")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text: a title, a header, rows, and notes below it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def to_tables(evaluations: Sequence[Evaluation], full: bool = True) -> list[Table]:
    """Return the tables of each evaluation, then those that compare them.

    Unless they are wanted in `full`: one table of all means, and of comparisons those of the mean over classes.
    """
    if not full:
        several = len(by_configuration(evaluations)) > 1
        means = _seeds(evaluations, notes=True) if len(evaluations) > 1 else _means(evaluations[0])
        return [means, *(_comparisons(evaluations, only_means=True) if several else ())]
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
    if evaluation.has_empty_cases:
        yield detection_table(f"{evaluation.label}: detection by case", evaluation.detections)
    yield _volumes(evaluation)
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


def _means(evaluation: Evaluation) -> Table:
    """Return a row for each class, a column for each metric."""
    rows = zip(*(evaluation.summaries[metric] for metric in evaluation.metrics), strict=True)
    spreads = [[_spread(row.metric, row.mean, row.std) for row in summaries] for summaries in rows]
    names = [summary.class_name for summary in evaluation.summaries[evaluation.metrics[0]]]
    return Table(
        title=f"{evaluation.label}: mean ± standard deviation over cases",
        header=("class", *(_metric_title(metric, evaluation.unit) for metric in evaluation.metrics)),
        rows=[(name, *row) for name, row in zip(names, spreads, strict=True)],
        notes=_notes(evaluation),
    )


def _notes(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what was evaluated, and which structures were missed or invented: no mean shows that."""
    where = ", ".join(filter(None, (evaluation.dataset, evaluation.part)))
    weights = f"checkpoint {evaluation.checkpoint}; " if evaluation.checkpoint else ""
    what = (
        f"{where}: {evaluation.num_cases} cases of {evaluation.num_patients} patients; {weights}"
        f"convention {evaluation.convention}."
    )
    *classes, mean = evaluation.summaries[evaluation.metrics[0]]
    counts = []
    for outcome in ("missed", "invented"):
        by_class = {summary.class_name: getattr(summary, outcome) for summary in classes}
        listed = ", ".join(f"{name}: {count}" for name, count in by_class.items() if count)
        counts.append(f"{getattr(mean, outcome)} {outcome}{f' ({listed})' if listed else ''}")
    if mean.skipped:
        counts.append(f"{mean.skipped} left out")
    return what, f"Structures: {', '.join(counts)}.{_alarms(evaluation)}"


def _alarms(evaluation: Evaluation) -> str:
    """Return what happened to empty cases, where there are some."""
    if not evaluation.has_empty_cases:
        return ""
    *_, seen = evaluation.detections
    return (
        f" Empty cases: false alarms in {_part(seen.false_alarms, seen.clear)}; of the others, nothing found in "
        f"{_part(seen.misses, seen.hits)}."
    )


def _part(count: int, rest: int) -> str:
    """Return a count with its total and its share."""
    total = count + rest
    return f"{count} of {total}" + (f" ({100 * count / total:.1f} %)" if total else "")


def detection_table(title: str, detections: Sequence[Detection]) -> Table:
    """Return a row for each class, and one for any: in how many cases it was found, missed or invented."""
    rows = []
    for row in detections:
        shares = (_number("dice", share, ".1f") for share in (row.sensitivity, row.specificity))
        counts = _part(row.misses, row.hits), _part(row.false_alarms, row.clear)
        rows.append((row.class_name, *counts, *shares))
    return Table(title=title, header=("class", "missed", "false alarms", "sensitivity, %", "specificity, %"), rows=rows)


def _volumes(evaluation: Evaluation) -> Table:
    """Return how much is wrong: a volume says more than Dice where a class is small, or should not be there."""
    rows = []
    for label, name in {score.label: score.class_name for score in evaluation.scores}.items():
        too_much, too_little = (means_by("case", evaluation.scores, metric, label) for metric in VOLUMES)
        size = [means_by("case", evaluation.scores, metric, label) for metric in ("true_positives", "false_negatives")]
        without = [volume for case, volume in too_much.items() if not size[0][case] + size[1][case]]
        cells = (list(too_much.values()), without, list(too_little.values()))
        rows.append((name, *(f"{statistics.fmean(cell):.4g}" if cell else _NONE for cell in cells), str(len(without))))
    unit = "ml" if evaluation.unit == "mm" else "voxels"
    return Table(
        title=f"{evaluation.label}: false volumes, mean over cases",
        header=(
            "class",
            f"false positive, {unit}",
            "where it is absent",
            f"false negative, {unit}",
            "cases without it",
        ),
        rows=rows,
    )


def _slices(evaluation: Evaluation) -> Table:
    area = "mm²" if evaluation.unit == "mm" else "pixels"
    rows = []
    for summary in evaluation.slice_summaries:
        rows.append(
            (
                summary.class_name,
                str(summary.dense_slices),
                _spread("dense_dice", summary.dense_dice, summary.dense_std),
                _part(summary.sparse_found, summary.sparse_slices - summary.sparse_found),
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


def _seeds(evaluations: Sequence[Evaluation], notes: bool = False) -> Table:
    """Return a row for each configuration and class, a column for each metric, with the `notes` of each evaluation."""
    what, structures = zip(*map(_notes, evaluations), strict=True)
    listed = [f"{evaluation.label}: {note}" for evaluation, note in zip(evaluations, structures, strict=True)]
    metrics, unit = evaluations[0].metrics, evaluations[0].unit
    folders = _of_folders(evaluations)
    if folders and len(set(what)) > 1:
        what = tuple(f"{evaluation.label}: {note}" for evaluation, note in zip(evaluations, what, strict=True))
    cells: dict[tuple[int | None, str, str, str], dict[str, str]] = {}
    cases = {name: group[0].num_cases for name, group in by_configuration(evaluations).items()} if folders else {}
    for seeds in over_seeds(evaluations):
        count = str(cases.get(seeds.configuration, seeds.num_seeds))
        row = cells.setdefault((seeds.label, seeds.configuration, count, seeds.class_name), {})
        row[seeds.metric] = _spread(seeds.metric, seeds.mean, seeds.std)
    first = ("predictions", "cases") if folders else ("configuration", "runs")
    return Table(
        title="Mean over cases" + ("" if folders else "; ± standard deviation over seeds"),
        header=(*first, "class", *(_metric_title(metric, unit) for metric in metrics)),
        rows=[(*key[1:], *(row.get(metric, _NONE) for metric in metrics)) for key, row in cells.items()],
        notes=(*(dict.fromkeys([*what, *listed]) if notes else ()), *_notes_of_several(evaluations)),
    )


def _of_folders(evaluations: Sequence[Evaluation]) -> bool:
    return all(isinstance(evaluation.run, PredictionFolder) for evaluation in evaluations)


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
    if _of_folders(evaluations) and len({frozenset(evaluation.cases) for evaluation in evaluations}) > 1:
        notes.append(
            "Not of the same cases, as predictions are missing or could not be scored: means are over what each folder "
            "has, differences over the cases that both have."
        )
    datasets = list(dict.fromkeys(evaluation.dataset for evaluation in evaluations))
    if len(datasets) > 1:
        notes.append(
            f"Tested on several data sets ({', '.join(datasets)}): differences are between runs on one data set, "
            "because the patients of two are different people, whatever their names are."
        )
    return tuple(notes)


def _comparisons(evaluations: Sequence[Evaluation], only_means: bool = False) -> Iterator[Table]:
    comparisons, seeds = compare(evaluations), known_seeds(evaluations)
    unit = evaluations[0].unit
    for first, second in dict.fromkeys((comparison.first, comparison.second) for comparison in comparisons):
        rows = []
        for comparison in comparisons:
            if comparison.second == second and not (only_means and comparison.label is not None):
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


def to_html(tables: Sequence[Table], title: str) -> str:
    """Return tables as one HTML page that works offline."""
    body = "\n".join(_html(table) for table in tables)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
p { margin: 0.4rem 0; opacity: 0.8; }
"""


def _html(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = "\n".join(line(row, "td") for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in table.notes)
    return f"<h2>{escape(table.title)}</h2>\n<div><table>\n{line(table.header, 'th')}\n{rows}\n</table></div>\n{notes}"


# -- files ------------------------------------------------------------------------------------------------------------


def check_out(path: Path, formats: Sequence[str] = _FORMATS) -> None:
    """Raise a `ConfigError` if tables could not be written to `path`: better now than after the work."""
    if path.suffix not in formats:
        raise ConfigError(
            f"Expected a file that ends in {', '.join(formats)}, but got {path}. Name the format by the ending."
        )
    if path.is_dir():
        raise ConfigError(f"Expected a file for the tables, but {path} is a folder. Name a file in it.")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"Expected to write {path}, but {folder} is not a writable folder. Name another.")


def write_tables(path: Path, evaluations: Sequence[Evaluation], faults: "Sequence[Fault]" = ()) -> None:
    """Write the tables of evaluations in the format that the file's ending names.

    CSV has a row for each run, metric and class, with all digits; JSON has everything. What could not be scored stands
    at the end, but not in CSV.
    """
    check_out(path)
    tables = [*(to_tables(evaluations) if evaluations else ()), *([_unscored(faults)] if faults else ())]
    everything = to_dict(evaluations) | ({"faults": [asdict(fault) for fault in faults]} if faults else {})
    texts = {
        ".json": lambda: json.dumps(everything, indent=2, allow_nan=False) + "\n",
        ".md": lambda: to_markdown(tables),
        ".tex": lambda: to_latex(tables),
        ".html": lambda: to_html(tables, ", ".join(evaluation.label for evaluation in evaluations) or "scores"),
    }
    with explained(ConfigError, str(path), "Name another file."):
        if path.suffix == ".csv":
            columns = ["run", "evaluation", "unit", *(field.name for field in fields(Summary))]
            write_csv(path, columns, _summary_rows(evaluations))
        else:
            write_text(path, texts[path.suffix]())


def _unscored(faults: "Sequence[Fault]") -> Table:
    rows = [(fault.predictions or "truth", fault.case or _NONE, fault.message) for fault in faults]
    return Table(title="Not scored", header=("predictions", "case", "why"), rows=rows)


def _summary_rows(evaluations: Sequence[Evaluation]) -> Iterator[dict[str, Any]]:
    for evaluation in evaluations:
        facts = {"run": str(evaluation.run.folder), "evaluation": evaluation.name, "unit": evaluation.unit}
        yield from (facts | asdict(summary) for rows in evaluation.summaries.values() for summary in rows)
