"""What goes into a report, as plain data: runs are read here, and nothing else is."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.errors import AdawacError, RunError
from adawac.figures.style import class_colour, colour_map
from adawac.report.atlas import Blobs, encode_atlas, has_consistency, late_mean, thin
from adawac.report.provenance import list_commands, list_environments, list_missing, list_settings
from adawac.report.score_table import compare_scores
from adawac.report.suspects import KINDS, Findings, Suspect, examine_samples
from adawac.report.thumbnails import draw_picture
from adawac.report.verdict import describe_weights
from adawac.runs import Gallery, Run

_FROM_HISTORY = ("beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense")


def read_curves(run: Run) -> dict[str, Any]:
    """Return `epochs`, and for each metric a value per epoch or None."""
    rows = {int(one["epoch"]): dict(one) for one in run.metrics}
    logged = {name for one in rows.values() for name in one}
    if not logged.issuperset(_FROM_HISTORY):
        for epoch, values in _separation(run).items():
            rows[epoch] = values | rows.get(epoch, {"epoch": epoch})
    ordered = [rows[epoch] for epoch in sorted(rows)]
    names = sorted({name for one in ordered for name in one} - {"epoch"})
    series = {name: [_number(one.get(name)) for one in ordered] for name in names}
    return {
        "epochs": [one["epoch"] for one in ordered],
        "series": {name: values for name, values in series.items() if any(one is not None for one in values)},
    }


def _separation(run: Run) -> dict[int, dict[str, Any]]:
    """Return by epoch how well beta separates, for runs that did not log it."""
    if run.samples is None or not np.isfinite(run.history["beta"]).any():
        return {}
    from adawac.runs.epoch_statistics import summarise  # it comes with torch, which most reports do without

    sparse = run.samples.label_sparse
    fields = {name: run.history[name] for name in ("ell_ce", "reg_ac", "beta")}
    found = {}
    for place, epoch in enumerate(run.history.epochs.tolist()):
        seen = np.all([np.isfinite(values[place, : len(sparse)]) for values in fields.values()], axis=0)
        if seen.any():
            own = {name: values[place, : len(sparse)][seen] for name, values in fields.items()}
            summary = summarise(own, sparse[seen])
            found[epoch] = {name: summary[name] for name in _FROM_HISTORY}
    return found


def _number(value: Any) -> float | None:
    """Return a number to six digits, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


_CELLS = 1_500_000  # of all heat maps together: about 10 MB in the file
_MOST_SUSPECTS = 300

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Report:
    """Everything a report shows: JSON's own types, and the large parts as base64."""

    data: dict[str, Any]
    blobs: list[str]


def collect(runs: Sequence[Run | Path | str], *, pictures: int = 100) -> Report:
    """Read runs, whole or not, and return what a report of them shows.

    Args:
        runs: Run folders; the first one is the one that scores are compared with.
        pictures: How many slices of the galleries to include at most; those of suspects come first.
    """
    if not runs:
        raise RunError("Expected a run folder, but got none. Give one or several.")
    opened = [one if isinstance(one, Run) else Run(one) for one in runs]
    blobs = Blobs()
    tables, faults = compare_scores(opened)
    findings = [_examine(run) for run in opened]
    shown, picture_faults = _pictures(opened, [one.suspects for one in findings], pictures, blobs)
    names = _names([run.folder for run in opened])
    parts = []
    for place, run in enumerate(opened):
        more = faults.get(place, []) + picture_faults.get(place, [])
        parts.append({"name": names[place], **_describe(run, findings[place], len(opened), blobs, more)})
    data = {
        "adawac": adawac.__version__,
        "kinds": KINDS,
        "maps": {"diverging": colour_map("diverging"), "sequential": colour_map("sequential")},
        "runs": parts,
        "scores": tables,
        "pictures": shown,
        "command": shlex.join(["adawac", "report", *names, "--out", "report.html"]),
    }
    return Report(data, blobs.texts)


def _describe(run: Run, findings: Findings, count: int, blobs: Blobs, faults: list[str]) -> dict[str, Any]:
    """Return everything about one run."""
    samples = 0 if run.samples is None else min(len(run.samples), run.history.num_samples)
    listed, curves = findings.suspects[:_MOST_SUSPECTS], read_curves(run)
    rows, epochs = thin(samples, len(run.history), _CELLS // count, [one.row for one in listed])
    page_row = {int(row): place for place, row in enumerate(rows)}
    return {
        "status": run.status,
        "epoch": run.epoch,
        "epochs": run.info.get("epochs"),
        "created": run.info.get("created"),
        "updated": run.info.get("updated"),
        "format_version": run.info.get("format_version", 0),
        "summary": {str(key): value for key, value in run.summary.items() if isinstance(value, str | int | float)},
        "dataset": str(run.data.get("dataset") or ""),
        "classes": [
            {"label": label, "name": name, "colour": class_colour(label)} for label, name in _class_names(run) if label
        ],
        "samples": _samples(run, rows),
        "headline": _headline(run),
        "verdict": describe_weights(run, curves),
        "atlas": encode_atlas(run, rows, epochs, blobs),
        "thinned": {"samples": [len(rows), samples], "epochs": [len(epochs), len(run.history)]},
        "suspects": [
            {
                "row": page_row[one.row],
                "kind": one.kind,
                "score": round(one.score, 4),
                "epoch": int(np.abs(epochs - one.epoch).argmin()),
                "reason": one.reason,
            }
            for one in listed
        ],
        "suspects_found": len(findings.suspects),
        "suspects_remark": findings.remark,
        "curves": curves,
        "settings": list_settings(run),
        "environment": list_environments(run),
        "commands": list_commands(run),
        "missing": list_missing(run, faults),
        "outdated": [f"{part} is {why}" for part, why in run.outdated.items()],
    }


def _samples(run: Run, rows: Ints) -> dict[str, Any]:
    """Return the table's columns that the page needs; the cases as numbers, for they repeat."""
    table = run.samples
    if table is None:
        return {"cases": [], "case": [], "slice": [], "id": [], "group": [], "share": []}
    numbers = {case: number for number, case in enumerate(table.cases)}
    return {
        "cases": list(table.cases),
        "case": [numbers[str(one)] for one in table.case[rows]],
        "slice": table.slice[rows].tolist(),
        "id": [str(one) for one in table.id[rows]],
        "group": [str(one) for one in table.group[rows]],
        "share": [None if np.isnan(one) else float(f"{one:.6g}") for one in _share(run)[rows]],
    }


def _share(run: Run) -> npt.NDArray[np.float64]:
    """Return (n,) the share of foreground in each sample; NaN where there is no label."""
    return np.empty(0) if run.samples is None else run.samples.foreground


def _headline(run: Run) -> dict[str, Any]:
    """Return how many samples there are, how many carry no label, and on which side of 1/2 beta left them.

    `weighs` says what beta is for: `both`, CE against consistency; `ce`, CE alone; `nothing`, it does not move.
    """
    share = _share(run)
    sparse, dense = is_label_sparse(share), is_label_dense(share)
    found: dict[str, Any] = {
        "samples": len(share),
        "cases": 0 if run.samples is None else len(run.samples.cases),
        "sparse": int(sparse.sum()),
        "dense": int(dense.sum()),
    }
    if len(run.history) and len(share):
        beta = late_mean(run.history["beta"])[: len(share)]
        moves = np.isfinite(beta).any() and np.ptp(beta[np.isfinite(beta)]) > 1e-6
        found["weighs"] = "nothing" if not moves else "both" if has_consistency(run.history["reg_ac"]) else "ce"
        if found["weighs"] == "both":
            for name, side in (("sparse_low", beta[sparse] < 0.5), ("dense_high", beta[dense] > 0.5)):
                found[name] = int(side.sum())
    return found


def _examine(run: Run) -> Findings:
    share, history = _share(run), run.history
    if not len(share) or not len(history):
        return Findings(suspects=[], remark="")
    fields = (history[name][:, : len(share)] for name in ("beta", "ell_ce", "reg_ac"))
    method = run.settings.get("method")
    held = method.get("hold_epochs") if isinstance(method, dict) else None
    return examine_samples(share, history.epochs, *fields, held=held if isinstance(held, int) else 0)


def _class_names(run: Run) -> list[tuple[int, str]]:
    names = run.samples.class_names if run.samples is not None else run.data.get("class_names", ())
    return list(enumerate(str(name) for name in names))


def _pictures(
    runs: Sequence[Run], suspects: list[list[Suspect]], most: int, blobs: Blobs
) -> tuple[list[dict[str, Any]], dict[int, list[str]]]:
    """Return the slices of all galleries by sample id, each with the prediction of every run that has one."""
    places, faults = _gallery_places(runs)
    galleries = {id(gallery): gallery for found in places.values() for _, gallery in found}.values()
    wanted = dict.fromkeys(
        str(run.samples.id[one.row])
        for run, own in zip(runs, suspects, strict=True)
        if run.samples is not None
        for one in own
    )
    # What several runs show can be compared; then the runs take turns, for each gallery is in an order of its own.
    ranks = {name: rank for gallery in galleries for rank, name in enumerate(gallery)}
    rest = sorted((name for name in places if name not in wanted), key=lambda name: (-len(places[name]), ranks[name]))
    order = [*(name for name in wanted if name in places), *rest]
    shown = []
    for name in order[: max(most, 0)]:
        drawn: dict[str, Any] = {}
        for place, gallery in places[name]:
            try:
                one = draw_picture(gallery[name], blobs)
            except (AdawacError, OSError, ValueError, LookupError, TypeError) as error:
                faults.setdefault(place, []).append(f"{name!r} of {gallery.path.name}: {error}")
                continue
            prediction = one.pop("prediction")
            drawn = drawn or {**one, "predictions": {}}
            drawn["label"] = one["label"] if drawn["label"] is None else drawn["label"]
            if prediction is not None:
                drawn["predictions"].setdefault(str(place), prediction)
        if drawn:
            shown.append(drawn)
    return shown, faults


def _gallery_places(runs: Sequence[Run]) -> tuple[dict[str, list[tuple[int, Gallery]]], dict[int, list[str]]]:
    """Return for each sample id the runs and galleries that show it."""
    places: dict[str, list[tuple[int, Gallery]]] = {}
    faults: dict[int, list[str]] = {}
    for place, run in enumerate(runs):
        for title in run.galleries:
            try:
                gallery = run.gallery(title)
                for name in gallery:
                    places.setdefault(name, []).append((place, gallery))
            except (AdawacError, OSError) as error:
                faults.setdefault(place, []).append(str(error))
    return places, faults


def _names(folders: Sequence[Path]) -> list[str]:
    """Return names that tell the folders apart: as few of their last parts as that takes."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{one[-1]} ({place + 1})" for place, one in enumerate(parts)]  # the same folder, given twice
