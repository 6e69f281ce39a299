"""Labels that are probably wrong, by what networks say of patients that they were not trained on.

A cross-validation asks twice about each slice. The network that never saw the patient says how much likelier it finds
its own label map than the one that is there, in nats. The networks that were trained on the slice say whether its label
could be learned: that is AdaWAC's own evidence, the cross-entropy that a sample ends with, in the history of the runs.

Networks and annotators never agree to the pixel along an organ's border, and that is no error. So the evidence of a
slice, the sum of both over its pixels, is measured by the length of the label's borders: a thin band of doubt along a
long border is usual, and the same doubt beside a short one, or in a slice without any, is not.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, leave_out_ignored, match_rows
from adawac.data.store import Store
from adawac.errors import RunError, reading
from adawac.evaluation.gallery import make_slice
from adawac.evaluation.out_of_fold import Doubts, read_doubts, read_losses
from adawac.figures.overlays import draw_doubt, edges
from adawac.figures.style import Style
from adawac.files import write_csv
from adawac.report.suspects import late_mean
from adawac.runs import Run

Floats = npt.NDArray[np.float64]

LIST = "label-errors.csv"
"""What a labeller works through; it lies in the run folder of all folds, too."""
KIND = {"out-of-fold": "a network that never saw the patient contradicts the label"}
"""The kind of suspect that a report shows these as, in words."""
_FIELDS = ("ell_ce", "reg_ac", "beta")  # what is taken from the history
_LABELLERS = ("verdict", "note")  # columns that are kept when the list is written again
_PLAIN = 0.25  # how much surer of its class than of the label a network is of a suspicious pixel
_LEAST = 0.05  # of the score: below it a sample is no suspect


@dataclass(frozen=True, kw_only=True)
class LabelError:
    """A sample whose label is probably wrong.

    Attributes:
        id, patient, case, slice: Which sample.
        score: From 0 (hardly) to 1 (plainly).
        why: What the network sees where the label says something else.
        pixels: How many pixels are suspicious.
        ell_ce: The sample's cross-entropy by the network that never saw the patient.
        train_ce, beta, reg_ac: How it ended in the networks that were trained on it, on average; NaN for none.
    """

    id: str
    patient: str
    case: str
    slice: int
    score: float
    why: str
    pixels: int
    ell_ce: float
    train_ce: float
    beta: float
    reg_ac: float


def find_label_errors(store: Store, pooled: Run, folders: Mapping[str, Path]) -> list[LabelError]:
    """Return the samples whose labels the networks contradict, the plainest first.

    Args:
        store: The store.
        pooled: The run folder of all folds: what became of each sample in training.
        folders: For each case, where `predict_out_of_fold` keeps what is said of it.
    """
    losses = {loss.id: loss.ell_ce for folder in dict.fromkeys(folders.values()) for loss in read_losses(folder)}
    trained = _late_values(pooled)
    rows: dict[str, list[int]] = {case: [] for case in folders}
    for row in match_rows(store.table.id, list(losses)).tolist():
        rows[str(store.table.case[row])].append(row)
    suspects = [
        suspect
        for case, of_case in rows.items()
        for suspect in _examine_case(store, of_case, read_doubts(folders[case], case), losses, trained)
    ]
    return sorted(suspects, key=lambda suspect: (-suspect.score, suspect.id))


def score_label(excess: float, train_ce: float, border: int, size: int) -> float:
    """Return how plainly a label is wrong, from 0 to 1.

    Args:
        excess: By how much a network that never saw the patient finds its own classes likelier than the label, in nats,
            the mean over pixels.
        train_ce: The cross-entropy by networks that were trained on the sample; NaN counts as `excess` again.
        border: Pixels on a border of the label.
        size: Pixels of the sample.
    """
    total = (excess + (excess if np.isnan(train_ce) else train_ce)) * size
    nats = total / (border + np.sqrt(size))  # none is taken for shorter than a line across the slice
    return float(nats / (1 + nats)) if np.isfinite(nats) else 0.0


def _late_values(run: Run) -> dict[str, dict[str, float]]:
    """Return how each sample ended, by field and id."""
    if run.samples is None:
        return {}
    ids = run.samples.id.tolist()
    return {name: dict(zip(ids, late_mean(run.history[name]).tolist(), strict=True)) for name in _FIELDS}


def _examine_case(
    store: Store,
    rows: Sequence[int],
    doubts: Doubts,
    losses: Mapping[str, float],
    trained: Mapping[str, Mapping[str, float]],
) -> Iterator[LabelError]:
    table, (_, labels) = store.table, store.stack(str(store.table.case[rows[0]]))
    assert labels is not None  # only labelled cases are predicted
    for row in rows:
        sample, position = str(table.id[row]), int(table.position[row])
        prediction, label = leave_out_ignored(doubts.prediction[position], labels[position], store.num_classes)
        ended = {name: trained.get(name, {}).get(sample, np.nan) for name in _FIELDS}
        excess = mean_excess(doubts, position)
        score = score_label(excess, ended["ell_ce"], int(edges(label).sum()), label.size)
        doubt = doubt_map(doubts, position)
        if score < _LEAST or not doubt.any():
            continue
        yield LabelError(
            id=sample,
            patient=str(table.patient[row]),
            case=str(table.case[row]),
            slice=int(table.slice[row]),
            score=score,
            why=_describe(label, prediction, doubt, store.class_names),
            pixels=int((doubt > 0).sum()),
            ell_ce=losses[sample],
            train_ce=ended["ell_ce"],
            beta=ended["beta"],
            reg_ac=ended["reg_ac"],
        )


def mean_excess(doubts: Doubts, position: int) -> float:
    """Return how much likelier a network finds its own classes than the label, in nats: the mean over a slice."""
    of_prediction, of_label = (
        np.log(np.maximum(shares[position], 0.5)) for shares in (doubts.certainty, doubts.confidence)
    )  # half a step in place of 0
    return float((of_prediction - of_label).mean())


def doubt_map(doubts: Doubts, position: int) -> Floats:
    """Return (H, W): how much surer the network is of its class than of the label, where that is plain; 0 elsewhere."""
    gap = (doubts.certainty[position].astype(np.float64) - doubts.confidence[position]) / 255
    return np.where(gap > _PLAIN, gap, 0.0)


def _describe(label: Array, prediction: Array, doubt: Floats, names: Sequence[str]) -> str:
    """Say in words which classes contradict each other, the largest areas first."""
    pairs, counts = np.unique(np.stack([prediction, label])[:, doubt > 0], axis=1, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:2]
    parts = [
        f"{names[seen]} where the label says {names[said]} ({count} px)"
        for (seen, said), count in zip(pairs.T[largest].tolist(), counts[largest].tolist(), strict=True)
    ]
    return f"The network sees {' and '.join(parts)}."


# -- the labeller's list ----------------------------------------------------------------------------------------------


def write_label_errors(
    path: Path, store: Store, suspects: Sequence[LabelError], folders: Mapping[str, Path], pictures: int = 50
) -> list[Path]:
    """Write the list that a labeller works through, and draw the first of its samples beside it.

    What was written into the columns `verdict` and `note` stays.

    Returns:
        The list, and the folder of the pictures.
    """
    kept = {row["id"]: row for row in _read_rows(path)}
    drawn = path.with_suffix("")
    for old in drawn.glob("*.png"):
        old.unlink()
    names = {suspect.id: f"{suspect.case}-{suspect.slice:03d}.png" for suspect in suspects[: max(pictures, 0)]}
    ranks = {suspect.id: rank for rank, suspect in enumerate(suspects, start=1)}
    for suspect, doubts in with_doubts(suspects[: len(names)], folders):
        _draw(drawn / names[suspect.id], store, suspect, doubts, ranks[suspect.id])
    rows = []
    for suspect in suspects:
        picture = f"{drawn.name}/{names[suspect.id]}" if suspect.id in names else ""
        verdict = {name: kept.get(suspect.id, {}).get(name) for name in _LABELLERS}
        rows.append({**asdict(suspect), "rank": ranks[suspect.id], "picture": picture, **verdict})
    # What is judged and no longer a suspect, as of another version, comes last.
    rows += [
        {**row, "rank": "", "picture": ""}
        for sample, row in kept.items()
        if sample not in ranks and any(row.get(name) for name in _LABELLERS)
    ]
    columns = ["rank", *(field.name for field in fields(LabelError)), "picture", *_LABELLERS]
    cells = ({name: _cell(row.get(name)) for name in columns} for row in rows)
    write_csv(path, columns, cells, encoding="utf-8-sig")
    return [path, drawn] if names else [path]


def with_doubts(suspects: Sequence[LabelError], folders: Mapping[str, Path]) -> Iterator[tuple[LabelError, Doubts]]:
    """Yield suspects with the maps of their cases, case by case: each is read once."""
    for case, of_case in groupby(sorted(suspects, key=_case), key=_case):
        doubts = read_doubts(folders[case], case)
        yield from ((suspect, doubts) for suspect in of_case)


_case = attrgetter("case")


def read_label_errors(path: Path) -> list[LabelError]:
    """Read a labeller's list; nothing where there is none."""
    kinds: dict[str, Any] = {"slice": int, "pixels": int, **dict.fromkeys(_NUMBERS, float)}
    names = [field.name for field in fields(LabelError)]
    with reading(lambda reason: RunError(f"Expected label errors in {path}, but got: {reason}. Cross-validate again.")):
        return [LabelError(**{name: kinds.get(name, str)(row[name]) for name in names}) for row in _read_rows(path)]


_NUMBERS = ("score", "ell_ce", "train_ce", "beta", "reg_ac")


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a list, also as a spreadsheet saved it, with another separator; none without a file."""
    if not path.is_file():
        return []
    advice = "Save it as CSV in UTF-8, or move it away"
    with reading(lambda reason: RunError(f"Expected a labeller's list in {path}, but got: {reason}. {advice}.")):
        text = path.read_text(encoding="utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
        return [{**row, "id": row["id"].removeprefix("'")} for row in rows]


def _cell(value: Any) -> str:
    """Return a cell as a spreadsheet shows it: text that begins like a formula would be taken for one."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text


def _draw(path: Path, store: Store, suspect: LabelError, doubts: Doubts, rank: int) -> None:
    positions = store.table.position[store.table.id == suspect.id]
    position = int(positions[0])
    where = suspect.id, suspect.case, position
    shown = make_slice(store, *where, doubts.prediction[position])
    steps = np.round(doubt_map(doubts, position) * 255).astype(np.uint8)
    doubt = make_slice(store, *where, steps).prediction  # turned as the slice is
    assert doubt is not None  # it was given
    title = f"{rank}. {suspect.case}, slice {suspect.slice}: score {suspect.score:.2f}. {suspect.why}"
    style = Style(width="text")
    with style.applied():
        draw_doubt(shown, doubt / 255, store.class_names, title, style).save(path)


# -- where the truth is known -----------------------------------------------------------------------------------------


def average_precision(ranked: Sequence[str], wrong: Iterable[str]) -> float:
    """Return the mean over the wrong samples of the precision where the list reaches each; 0 where it does not.

    Examples:
        >>> average_precision(["a", "b", "c"], {"a", "c"})
        0.8333333333333333
    """
    wrong = set(wrong)
    hits = np.array([sample in wrong for sample in ranked], dtype=bool)
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].sum() / len(wrong)) if wrong else float("nan")


def measure_ranking(ranked: Sequence[str], wrong: Iterable[str], tops: Sequence[int] = (10, 20, 50)) -> dict[str, Any]:
    """Return average precision, and precision and recall of the first k samples of a list, for several k."""
    wrong = set(wrong)
    tops = sorted({*(top for top in tops if top <= len(ranked)), len(wrong)})
    hits = {top: len(wrong.intersection(ranked[:top])) for top in tops if top}
    return {
        "wrong": len(wrong),
        "average_precision": average_precision(ranked, wrong),
        "first": [
            {"count": top, "precision": found / top, "recall": found / len(wrong)} for top, found in hits.items()
        ],
    }
