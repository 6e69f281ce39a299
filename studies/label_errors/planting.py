"""A store's labels with errors in some slices: shifted, eroded, emptied, two classes swapped, an organ missed.

    python -m studies.label_errors.planting STORE DEST --seed 1 --share 0.05

The errors are dealt evenly over the kinds, and drawn among the slices that a kind can be planted in so that it can be
seen: at least a hundredth of the slice must change. DEST is a store like the other; `DEST/planted.json` names the
errors.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from adawac.data.cases import Case, CaseRef
from adawac.data.preparation import prepare
from adawac.data.sources import Source
from adawac.data.store import Store

PLANTED = "planted.json"
_VISIBLE = 0.01  # of the pixels of a slice: the least that an error changes
_SHIFT = 0.1  # of a slice's sides

Labels = npt.NDArray[np.integer]
Random = np.random.Generator


def shifted(label: Labels, rng: Random) -> Labels:
    """Move the whole label by a tenth of the slice, diagonally or straight; what comes in is background."""
    steps = [step for step in np.ndindex(3, 3) if step != (1, 1)]
    direction = np.array(steps[rng.integers(len(steps))]) - 1
    offset = direction * np.maximum(np.round(np.array(label.shape) * _SHIFT), 1)
    return ndimage.shift(label, offset, order=0, cval=0)


def eroded(label: Labels, rng: Random) -> Labels:
    """Erode every class until at most half of the foreground is left."""
    kept = label
    while (kept > 0).sum() > (label > 0).sum() / 2:
        classes = [number for number in np.unique(kept).tolist() if number]
        masks = [ndimage.binary_erosion(kept == number) for number in classes]
        kept = np.where(np.any(masks, axis=0), kept, 0).astype(label.dtype)
    return kept


def emptied(label: Labels, rng: Random) -> Labels:
    """Remove the whole foreground."""
    return np.zeros_like(label)


def swapped(label: Labels, rng: Random) -> Labels:
    """Exchange two classes of the slice."""
    present = [number for number in np.unique(label).tolist() if number]
    if len(present) < 2:
        return label
    first, second = rng.choice(present, 2, replace=False)
    return np.select([label == first, label == second], [second, first], label).astype(label.dtype)


def missed(label: Labels, rng: Random) -> Labels:
    """Remove one class, of two at least."""
    present = [number for number in np.unique(label).tolist() if number]
    return np.where(label == rng.choice(present), 0, label).astype(label.dtype) if len(present) > 1 else label


KINDS: Mapping[str, Callable[[Labels, Random], Labels]] = {
    "shifted": shifted,
    "eroded": eroded,
    "emptied": emptied,
    "swapped": swapped,
    "missed": missed,
}


@dataclass(frozen=True, kw_only=True)
class Planted(Source):
    """The cases of a store with other labels in some slices."""

    store: Path
    labels: dict[str, dict[int, Labels]] = field(default_factory=dict)

    def cases(self) -> list[CaseRef]:
        table = Store(self.store).table
        first = table.take(list(table.first_rows.values()))
        columns = zip(*(getattr(first, name).tolist() for name in ("patient", "case", "group", "split")), strict=True)
        return [
            CaseRef(dataset=self.dataset, patient=patient, id=case, group=group or None, split=split)
            for patient, case, group, split in columns
        ]

    def load(self, ref: CaseRef) -> Case:
        store = Store(self.store)
        case = store.volume(ref.id)
        assert case.label is not None
        stack = store.preprocessing.cut(case.label).copy()
        for position, label in self.labels.get(ref.id, {}).items():
            stack[position] = label
        return replace(case, label=store.preprocessing.join(stack))

    def options(self) -> dict[str, str]:
        return {"planted": json.dumps({case: sorted(slices) for case, slices in self.labels.items()}, sort_keys=True)}


def plant(path: Path, dest: Path, *, seed: int, share: float = 0.05) -> dict[str, str]:
    """Write a store with errors in a share of its labelled slices, and return the kind of each by its sample id."""
    store, rng = Store(path), np.random.default_rng(seed)
    table = store.table
    wanted = round(share * int((~table.unlabelled).sum()) / len(KINDS))
    labels: dict[str, dict[int, Labels]] = {}
    planted: dict[str, str] = {}
    counts = dict.fromkeys(KINDS, 0)
    for row in rng.permutation(np.flatnonzero(table.label_dense)).tolist():
        case, position = str(table.case[row]), int(table.position[row])
        _, label = store.read(case, position)
        for kind in sorted(KINDS, key=counts.__getitem__):
            wrong = KINDS[kind](np.array(label), rng)
            if counts[kind] < wanted and (wrong != label).mean() >= _VISIBLE:
                labels.setdefault(case, {})[position] = wrong
                planted[str(table.id[row])] = kind
                counts[kind] += 1
                break
    # What the store holds is preprocessed: it is cut the same way, and nothing else.
    plain = {"orientation": None, "spacing": None, "window": None, "clip_quantile": None, "normalisation": "none"}
    source = Planted(
        dataset=store.dataset,
        classes=dict(zip(store.class_names, ((k,) for k in range(store.num_classes)), strict=True)),
        channels=store.channels,
        preprocessing=replace(store.preprocessing, **plain),
        store=path,
        labels=labels,
    )
    prepare(source, None, dest, workers=1, progress=False)
    (dest / PLANTED).write_text(json.dumps(planted, indent=1) + "\n", encoding="utf-8")
    return planted


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.05)
    options = parser.parse_args(arguments)
    plant(options.store, options.dest, seed=options.seed, share=options.share)


if __name__ == "__main__":
    main()
