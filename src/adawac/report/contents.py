"""What goes into a report, as plain data: runs are read here, and nowhere else."""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.data.task import class_colour
from adawac.errors import AdawacError, RunError
from adawac.figures.display_names import folder_names
from adawac.figures.style import gradient_colours
from adawac.report.blobs import Blobs, Ints, draw_picture, encode_atlas, thin
from adawac.report.label_errors import KIND, LIST, LabelError, read_label_errors
from adawac.report.score_table import compare_scores, rounded
from adawac.report.suspects import KINDS, Findings, Suspect, examine_samples, has_consistency, late_mean, varies
from adawac.report.verdict import WITH_FOREGROUND, describe_outcome, describe_weights
from adawac.runs import Gallery, Run
from adawac.runs.environment import scrub
from adawac.runs.epoch_statistics import summarise

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
    shown = _pictures(opened, findings, pictures, blobs, faults)
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
        "settings": [[path, _text(value)] for path, value in _flatten(run.settings)],
        "environment": [[[path, _text(value)] for path, value in _flatten(start)] for start in run.environments],
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


# -- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(
    runs: Sequence[Run], findings: Sequence[Findings], most: int, blobs: Blobs, faults: list[list[str]]
) -> list[dict[str, Any]]:
    """Return the slices of all galleries by sample id, each with the prediction of every run that has one."""
    sources = _gallery_sources(runs, faults)
    galleries = {id(gallery): gallery for pairs in sources.values() for _, gallery in pairs}.values()
    wanted = dict.fromkeys(
        str(run.samples.id[suspect.row])
        for run, of_run in zip(runs, findings, strict=True)
        if run.samples is not None
        for suspect in of_run.suspects
    )
    # Slices that several runs have can be compared; after these the runs take turns, each in its gallery's order.
    ranks = {name: rank for gallery in galleries for rank, name in enumerate(gallery)}
    rest = sorted((name for name in sources if name not in wanted), key=lambda name: (-len(sources[name]), ranks[name]))
    order = [*(name for name in wanted if name in sources), *rest]
    shown = []
    for name in order[: max(most, 0)]:
        drawn: dict[str, Any] = {}
        for index, gallery in sources[name]:
            try:
                picture = draw_picture(gallery[name], blobs)
            except (AdawacError, OSError, ValueError, LookupError, TypeError) as error:
                faults[index].append(f"{name!r} of {gallery.path.name}: {error}")
                continue
            prediction = picture.pop("prediction")
            drawn = drawn or {**picture, "predictions": {}}
            drawn["label"] = picture["label"] if drawn["label"] is None else drawn["label"]
            if prediction is not None:
                drawn["predictions"].setdefault(str(index), prediction)
        if drawn:
            shown.append(drawn)
    return shown


def _gallery_sources(runs: Sequence[Run], faults: list[list[str]]) -> dict[str, list[tuple[int, Gallery]]]:
    """Return for each sample id the runs and galleries that show it."""
    sources: dict[str, list[tuple[int, Gallery]]] = {}
    for index, run in enumerate(runs):
        for title in run.galleries:
            try:
                gallery = run.gallery(title)
                for name in gallery:
                    sources.setdefault(name, []).append((index, gallery))
            except (AdawacError, OSError) as error:
                faults[index].append(str(error))
    return sources


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


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting as its path and its value."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _flatten(entry, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _text(value: Any) -> str:
    """Return a setting as text, without the user's home and name."""
    if value is None or isinstance(value, Mapping):
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(_text(entry) for entry in value) or "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return scrub(["", text])[1] if isinstance(value, str | Path) else text
