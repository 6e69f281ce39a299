"""What goes into a report, as plain data: runs are read here, and nowhere else."""

import json
import logging
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.config.values import flatten
from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.data.task import class_colour
from adawac.errors import AdawacError, RunError
from adawac.evaluation.statistics import (
    COUNTS,
    HIGHER_IS_BETTER,
    OUTCOMES,
    VOLUMES,
    bootstrap_interval,
    by_patient,
    paired_difference,
    presence_of_any,
)
from adawac.figures.display_names import folder_names
from adawac.figures.style import gradient_colours
from adawac.report.blobs import Blobs, Ints, collect_pictures, encode_atlas, thin
from adawac.report.label_errors import KIND, LIST, LabelError, read_label_errors
from adawac.report.suspects import KINDS, Findings, Suspect, examine_samples, has_consistency, late_mean, varies
from adawac.report.verdict import WITH_FOREGROUND, describe_outcome, describe_weights
from adawac.runs import Run, Score
from adawac.runs.environment import scrub
from adawac.runs.history import summarise
from adawac.runs.layout import is_number

log = logging.getLogger(__name__)

_CELLS = 1_500_000  # of all heat maps together: about 10 MB in the file
_MOST_SUSPECTS = 300
_NOTHING = Findings(suspects=[], remark="")
_FROM_HISTORY = ("beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense")


@dataclass(frozen=True)
class Report:
    """Everything a report shows: JSON's types, and the large parts as base64."""

    data: dict[str, Any]
    blobs: list[str]


def collect(runs: Sequence[Run | Path | str], *, pictures: int = 100) -> Report:
    """Read runs, complete or not, and return what a report of them shows.

    Args:
        runs: Run folders; scores are compared with the first one's.
        pictures: How many slices of the galleries to include at most; those of suspects come first.
    """
    if not runs:
        raise RunError("Expected a run folder, but got none. Give one or several.")
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    blobs = Blobs()
    faults: list[list[str]] = [[] for _ in opened]  # of each run, what cannot be read
    tables = compare_scores(opened, faults)
    listed = [(run.folder / LIST).is_file() for run in opened]
    # What networks say that never saw a patient leaves nothing to add for those that did.
    findings = [
        _examine(run) if listing or not any(listed) else _NOTHING for run, listing in zip(opened, listed, strict=True)
    ]
    shown = collect_pictures(opened, findings, pictures, blobs, faults)
    names = folder_names([run.folder for run in opened])
    if len(set(names)) < len(names):  # the same folder twice
        names = [f"{run.folder.resolve().name} ({number})" for number, run in enumerate(opened, start=1)]
    parts = [
        {"name": name, **_describe(run, of_run, len(opened), blobs, unreadable)}
        for name, run, of_run, unreadable in zip(names, opened, findings, faults, strict=True)
    ]
    data = {
        "adawac": adawac.__version__,
        "kinds": KIND | KINDS,
        "maps": {"diverging": gradient_colours("diverging"), "sequential": gradient_colours("sequential")},
        "outcome": _outcome(opened, names, tables),
        "runs": parts,
        "scores": tables,
        "pictures": shown,
        "command": shlex.join(["adawac", "report", *names, "--out", "report.html"]),
    }
    return Report(data, blobs.texts)


def _outcome(runs: Sequence[Run], names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the report's first sentences; runs are called by their methods where these differ."""
    methods = [str(run.summary.get("method", "")) for run in runs]
    called = methods if all(methods) and len(set(methods)) == len(methods) else names
    # Where cases are empty, most of the mean over all of them says that nothing was found there.
    empty = any(table["metric"] == "case_specificity" for table in tables)
    for table in tables:
        if table["metric"] == ("dense_dice" if empty else "dice"):
            pairs = zip(table["runs"], table["rows"][0]["cells"], strict=True)
            dice = {called[index]: cell["mean"] for index, cell in pairs if cell}
            break
    else:
        dice = {}
    return describe_outcome(dict(zip(called, runs, strict=True)), dice, *([WITH_FOREGROUND] if empty else []))


def _describe(run: Run, findings: Findings, count: int, blobs: Blobs, unreadable: list[str]) -> dict[str, Any]:
    """Return everything about one run."""
    samples = 0 if run.samples is None else min(len(run.samples), run.history.num_samples)
    listed, curves = findings.suspects[:_MOST_SUSPECTS], read_curves(run)
    rows, epochs = thin(samples, len(run.history), _CELLS // count, [suspect.row for suspect in listed])
    page_row = {int(row): index for index, row in enumerate(rows)}
    names = run.samples.class_names if run.samples is not None else run.data.get("class_names", ())
    return {
        "status": run.status,
        "epoch": run.epoch,
        "epochs": run.info.get("epochs"),
        "created": run.info.get("created"),
        "updated": run.info.get("updated"),
        "format_version": run.info.get("format_version", 0),
        # Whole numbers as text: a browser would round long seeds.
        "summary": {
            str(key): str(value) if isinstance(value, int) else value
            for key, value in run.summary.items()
            if isinstance(value, str | int | float)
        },
        "dataset": str(run.data.get("dataset") or ""),
        "classes": [
            {"label": label, "name": str(name), "colour": class_colour(label)}
            for label, name in enumerate(names)
            if label
        ],
        "samples": _samples(run, rows),
        "headline": _headline(run),
        "verdict": describe_weights(run, curves),
        "atlas": encode_atlas(run, rows, epochs, blobs),
        "thinned": {"samples": [len(rows), samples], "epochs": [len(epochs), len(run.history)]},
        "suspects": [
            {
                "row": page_row[suspect.row],
                "kind": suspect.kind,
                "score": round(suspect.score, 4),
                "epoch": int(np.abs(epochs - suspect.epoch).argmin()),
                "reason": suspect.reason,
            }
            for suspect in listed
        ],
        "suspects_found": len(findings.suspects),
        "suspects_remark": findings.remark,
        "curves": curves,
        "calibration": _calibration(run, unreadable),
        "settings": [[path, _text(value)] for path, value in flatten(run.settings)],
        "environment": [[[path, _text(value)] for path, value in flatten(start)] for start in run.environments],
        "commands": _commands(run),
        "missing": _missing(run, unreadable),
        "outdated": [f"{part} is {why}" for part, why in run.outdated.items()],
    }


# -- samples ----------------------------------------------------------------------------------------------------------


def _samples(run: Run, rows: Ints) -> dict[str, Any]:
    """Return the table's columns that the page needs; the cases as numbers, for they repeat."""
    table = run.samples
    if table is None:
        return {"cases": [], "case": [], "slice": [], "id": [], "group": [], "share": [], "ignored": []}
    numbers = {case: number for number, case in enumerate(table.cases)}
    return {
        "cases": list(table.cases),
        "case": [numbers[str(case)] for case in table.case[rows]],
        "slice": table.slice[rows].tolist(),
        "id": [str(sample) for sample in table.id[rows]],
        "group": [str(group) for group in table.group[rows]],
        "share": [rounded(share) for share in table.foreground[rows].tolist()],
        "ignored": np.flatnonzero(table.partly_ignored[rows]).tolist(),
    }


def _calibration(run: Run, unreadable: list[str]) -> dict[str, Any] | None:
    """Return the temperature and how reliable probabilities are; None where nobody has calibrated the run."""
    try:
        return None if run.calibration is None else asdict(run.calibration)
    except (AdawacError, OSError) as error:
        unreadable.append(str(error))
        return None


def _share(run: Run) -> npt.NDArray[np.float64]:
    """Return (n,) the share of foreground in each sample; NaN where there is no label."""
    return np.empty(0) if run.samples is None else run.samples.foreground


def _headline(run: Run) -> dict[str, Any]:
    """Return how many samples there are, how many are empty or unlabelled, and on which side of 1/2 beta left them.

    `weighs` says what beta is for: `both`, CE against consistency; `ce`, CE alone; `nothing`, it does not move.
    """
    share = _share(run)
    sparse, dense = is_label_sparse(share), is_label_dense(share)
    headline: dict[str, Any] = {
        "samples": len(sparse),
        "cases": 0 if run.samples is None else len(run.samples.cases),
        "sparse": int(sparse.sum()),
        "dense": int(dense.sum()),
    }
    if run.samples is not None:
        states = {"unlabelled": run.samples.unlabelled.sum(), "partly_ignored": run.samples.partly_ignored.sum()}
        headline |= {state: int(count) for state, count in states.items() if count}
    if len(run.history) and len(sparse):
        beta = late_mean(run.history["beta"])[: len(sparse)]
        consistency = has_consistency(run.history["reg_ac"])
        headline["weighs"] = "nothing" if not varies(beta) else "both" if consistency else "ce"
        if headline["weighs"] == "both":
            headline["sparse_low"] = int((beta[sparse] < 0.5).sum())
            headline["dense_high"] = int((beta[dense] > 0.5).sum())
    return headline


def _examine(run: Run) -> Findings:
    share, history = _share(run), run.history
    if (listed := run.folder / LIST).is_file():
        return _listed(run, read_label_errors(listed))
    if not len(share) or not len(history):
        return _NOTHING
    fields = (history[name][:, : len(share)] for name in ("beta", "ell_ce", "reg_ac"))
    method = run.settings.get("method")
    held = method.get("hold_epochs") if isinstance(method, dict) else None
    return examine_samples(share, history.epochs, *fields, held=held if isinstance(held, int) else 0)


def _listed(run: Run, suspects: Sequence[LabelError]) -> Findings:
    """Return the suspects of a cross-validation, which knows more than one run."""
    row_of = {} if run.samples is None else {name: row for row, name in enumerate(run.samples.id.tolist())}
    last = len(run.history) - 1
    return Findings(
        suspects=[
            Suspect(row=row_of[suspect.id], kind=next(iter(KIND)), score=suspect.score, epoch=last, reason=suspect.why)
            for suspect in suspects
            if suspect.id in row_of
        ],
        remark="Each label is held against a network that never saw the patient.",
    )


# -- curves -----------------------------------------------------------------------------------------------------------


def read_curves(run: Run) -> dict[str, Any]:
    """Return `epochs`, and for each metric a value per epoch or None."""
    rows = {int(row["epoch"]): dict(row) for row in run.metrics}
    logged = {name for row in rows.values() for name in row}
    if not logged.issuperset(_FROM_HISTORY):
        for epoch, values in _separation(run).items():
            rows[epoch] = values | rows.get(epoch, {"epoch": epoch})
    ordered = [rows[epoch] for epoch in sorted(rows)]
    names = sorted({name for row in ordered for name in row} - {"epoch"})
    series = {name: [rounded(row.get(name)) for row in ordered] for name in names}
    return {
        "epochs": [row["epoch"] for row in ordered],
        "series": {name: values for name, values in series.items() if any(value is not None for value in values)},
    }


def _separation(run: Run) -> dict[int, dict[str, Any]]:
    """Return by epoch how well beta separates, for runs that did not log it."""
    if run.samples is None or not np.isfinite(run.history["beta"]).any():
        return {}
    sparse = run.samples.label_sparse
    fields = {name: run.history[name][:, : len(sparse)] for name in ("ell_ce", "reg_ac", "beta")}
    by_epoch = {}
    for index, epoch in enumerate(run.history.epochs.tolist()):
        seen = np.all([np.isfinite(values[index]) for values in fields.values()], axis=0)
        if seen.any():
            summary = summarise({name: values[index][seen] for name, values in fields.items()}, sparse[seen])
            by_epoch[epoch] = {name: summary[name] for name in _FROM_HISTORY}
    return by_epoch


# -- where a run comes from -------------------------------------------------------------------------------------------

_RESULTS = ("checkpoints", "scores", "gallery")  # normal to lack: not made yet, or removed
_RESTORE = "Restore the file from a copy, if there is one."
_REMEDIES = {
    "config.yaml": "Without it the run cannot be repeated from its folder.",
    "environment.json": "Versions and hardware are unknown.",
    "data.json": "Class names come from the table of samples, if that is there.",
    "samples.csv": "Without it no atlas can be drawn: it says which slice each weight belongs to.",
    "metrics.jsonl": "Without it there are fewer training curves.",
    "history.bin": "Without it there is no atlas.",
    "checkpoints": "There are no weights to evaluate or predict with.",
    "scores": "Evaluate the run to get scores: adawac evaluate RUN.",
    "gallery": "Evaluate the run to get pictures: adawac evaluate RUN.",
}


def _commands(run: Run) -> list[dict[str, str]]:
    """Return command lines with what each is for."""
    name = shlex.quote(run.folder.resolve().name)
    commands = [
        {"why": "and resumed" if index else "as it was started", "command": shlex.join(map(str, start["command"]))}
        for index, start in enumerate(run.environments)
        if start.get("command")
    ]
    if "loop" not in run.settings:  # a run of another training loop can only be repeated by that loop
        again = f"adawac train --config {name}/config.yaml --out {name}-again"
        commands.append({"why": "train it again from its own configuration", "command": again})
        commands.append({"why": "score it on its test cases", "command": f"adawac evaluate {name}"})
    return commands


def _missing(run: Run, unreadable: list[str]) -> list[dict[str, Any]]:
    """Return the parts that the folder lacks, why, what that means or what to do, and whether it is `normal`."""
    growing = ("metrics.jsonl", "history.bin") if run.status == "running" and not run.epoch else ()
    missing: list[dict[str, Any]] = [
        {
            "part": part,
            "why": _text(why),
            "remedy": _RESTORE if "damaged" in why else _REMEDIES.get(part, ""),
            "damaged": "damaged" in why,
            "normal": part in (*_RESULTS, *growing),
        }
        for part, why in {**run.missing, **run.damaged}.items()
    ]
    for part in missing:
        if not part["normal"]:
            log.warning("%s: %s. %s", run.folder / part["part"], part["why"].removesuffix("."), part["remedy"])
    for why in unreadable:
        log.warning("%s", why)
    return missing + [{"part": "a result", "why": _text(why), "remedy": "", "normal": False} for why in unreadable]


def _text(value: Any) -> str:
    """Return a setting as text, without the user's home and name."""
    if value is None or isinstance(value, Mapping):
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(_text(entry) for entry in value) or "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return scrub(["", text])[1] if isinstance(value, str | Path) else text


# -- scores of the runs side by side: means with intervals, and differences to the first run, by patient ---------------


def compare_scores(runs: Sequence[Run], faults: list[list[str]]) -> list[dict[str, Any]]:
    """Return a table for each evaluation, data set and metric, and add what cannot be read to the faults of its run.

    Evaluations that give the same numbers throughout, as two conventions often do, share a table. The first run that
    has an evaluation is the one that the others are compared with. Each data set has its own tables: patients of two
    may have the same name, and a label may be another class. So do distances in mm and in voxels.
    """
    read = [_read(run, unreadable) for run, unreadable in zip(runs, faults, strict=True)]
    tables = []
    for key in dict.fromkeys(key for of_run in read for key in of_run):
        by_run = {index: of_run[key] for index, of_run in enumerate(read) if key in of_run}
        metrics = dict.fromkeys(score.metric for scores in by_run.values() for score in scores)
        for metric in [metric for metric in metrics if metric not in (*OUTCOMES, *COUNTS, *VOLUMES)]:
            tables += [_table(*key, metric, unit, scores) for unit, scores in _by_unit(metric, by_run).items()]
    return _merge(tables)


def _read(run: Run, faults: list[str]) -> dict[tuple[str, str], list[Score]]:
    """Return the scores of a run by evaluation and data set."""
    scores: dict[tuple[str, str], list[Score]] = {}
    for name in run.evaluations:
        try:
            for score in run.scores(name):
                scores.setdefault((name, score.dataset), []).append(score)
        except (AdawacError, OSError) as error:
            faults.append(str(error))
    return {key: [*_detection_scores(of_key), *of_key] for key, of_key in scores.items()}


def _detection_scores(scores: Sequence[Score]) -> Iterator[Score]:
    """Yield for each case whether it was taken for what it is, empty or not, where there are empty ones."""
    presence = presence_of_any(scores)
    if all(truth for truth, _ in presence.values()):
        return
    first_of_case = {score.case: score for score in reversed(scores)}
    for case, (truth, found) in presence.items():
        metric, value = ("case_sensitivity", found) if truth else ("case_specificity", not found)
        row = first_of_case[case]
        yield replace(row, label=0, class_name="any foreground", metric=metric, value=float(value), unit="")


def _by_unit(metric: str, by_run: dict[int, list[Score]]) -> dict[str, dict[int, list[Score]]]:
    """Return the runs that have a metric, by what it is measured in."""
    units: dict[str, dict[int, list[Score]]] = {}
    for index, scores in by_run.items():
        for unit in dict.fromkeys(score.unit for score in scores if score.metric == metric):
            units.setdefault(unit, {})[index] = scores
    return units


def _table(evaluation: str, dataset: str, metric: str, unit: str, by_run: dict[int, list[Score]]) -> dict[str, Any]:
    classes: dict[tuple[int | None, str], None] = {(None, "mean of the classes"): None}
    for scores in by_run.values():
        classes |= {(score.label, score.class_name): None for score in scores if score.metric == metric}
    rows = list(classes)[1:] if len(classes) == 2 else list(classes)  # one class: its mean would be the same line twice
    first = next(iter(by_run.values()))[0]
    return {
        "evaluation": evaluation,
        "dataset": dataset,
        "metric": metric,
        "unit": unit,
        "higher_is_better": metric in HIGHER_IS_BETTER,
        "split": first.split,
        "convention": first.convention,
        "checkpoint": first.checkpoint,
        "runs": list(by_run),
        "rows": [{"label": label, "class_name": name, **_row(by_run, metric, label, name)} for label, name in rows],
    }


def _merge(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each table once, with the other evaluations that it holds for under `also`."""
    merged: dict[str, dict[str, Any]] = {}
    for table in tables:
        names = {name: table[name] for name in ("evaluation", "convention", "checkpoint")}
        numbers = json.dumps({name: value for name, value in table.items() if name not in names})
        if numbers in merged:
            merged[numbers]["also"].append(names)
        else:
            merged[numbers] = {**table, "also": []}
    return list(merged.values())


def _row(by_run: dict[int, list[Score]], metric: str, label: int | None, name: str) -> dict[str, Any]:
    """Return the means of a class, or of all classes, and the differences; a run may have another class at a label."""
    cells: list[dict[str, Any] | None] = []
    differences = []
    reference: dict[str, float] | None = None
    for scores in by_run.values():
        of_class = [score for score in scores if label is None or score.class_name == name]
        means = by_patient(of_class, metric, label)
        values = {patient: mean for patient, mean in means.items() if math.isfinite(mean)}
        reference = values if reference is None else reference
        numbers = list(values.values())
        if numbers:
            low, high = bootstrap_interval(numbers)
            mean = rounded(sum(numbers) / len(numbers))
            cells.append({"mean": mean, "low": rounded(low), "high": rounded(high), "patients": len(numbers)})
        else:
            cells.append(None)
        if values is not reference:
            differences.append(_difference(reference, values))
    return {"cells": cells, "differences": differences}


def _difference(first: dict[str, float], second: dict[str, float]) -> dict[str, Any] | None:
    """Return second minus first over the patients that both have, or None where there are none."""
    if not first.keys() & second.keys():
        return None
    difference = paired_difference(first, second)
    numbers = {name: rounded(getattr(difference, name)) for name in ("mean", "low", "high", "p_value")}
    return {**numbers, "patients": difference.num_patients}


def rounded(value: Any) -> float | None:
    """Return a whole number as it is, another finite one to six digits, or None for anything else."""
    if type(value) is int:
        return value
    return float(f"{value:.6g}") if is_number(value) else None
