"""The data a grid runs on: a store of the grid's data set and how it compares with the paper's, or a small phantom."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adawac.config import TrainConfig
from adawac.config.yaml_text import parse
from adawac.data.phantom.phantom_files import write_synapse_layout
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.data.sources.acdc import CLASSES as ACDC_CLASSES
from adawac.data.sources.synapse import CLASSES as SYNAPSE_CLASSES
from adawac.data.splits import labelled, resolve_split, subset_mask
from adawac.data.store import Store, is_store
from adawac.data.store_writer import writing
from adawac.errors import ConfigError, DataError, near
from adawac.evaluation.plan import check_sliced
from adawac.reproduction.grids import Grid, Row

MARK = "QUICK: phantom scans, a small network, few epochs. These are not the paper's numbers, nor comparable to them."
"""Stands in everything that a quick grid writes."""

_FILE = Path(__file__).with_name("quick.yaml")


def quick_settings(grid: Grid) -> dict[str, Any]:
    """Return the settings that make the runs of a grid small."""
    return {**_read()["settings"], **_data(grid).get("settings", {})}


def quick_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with as many of their seeds as a quick grid runs."""
    most = int(_read()["seeds"])
    return [replace(row, seeds=row.seeds[:most]) for row in rows]


def phantom_store(grid: Grid, folder: Path) -> Path:
    """Return the store that a quick grid trains on; it is drawn and prepared once."""
    which = _data(grid)
    name = grid.dataset or "synapse"
    store = folder / f"{name}-store"
    if is_store(store):
        return store
    if which.get("layout") == "synapse":
        training = {int(number): tuple(slices) for number, slices in which["training"].items()}
        files = folder / f"{name}-files"
        with writing(files, "the phantom"):
            write_synapse_layout(files, size=which["size"], training=training, test=which["test"])
        prepare("synapse", files, store, workers=1, progress=False)
    else:
        prepare(phantom_source(**which["phantom"]), None, store, workers=1, progress=False)
    return store


def _read() -> dict[str, Any]:
    return dict(parse(_FILE.read_bytes()))


def _data(grid: Grid) -> dict[str, Any]:
    name, known = grid.dataset or "synapse", _read()["data"]
    if name not in known:
        expected = f"Expected the dataset of a quick grid to be one of {', '.join(known)}"
        raise ConfigError(f"{expected}, but got {name!r}. Change it.")
    return dict(known[name])


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """What a data set holds: slices and cases to train on, slices among them that are label-dense, cases to test on."""

    slices: int
    cases: int
    dense: int
    test: int

    def __str__(self) -> str:
        return (
            f"{self.slices} training slices of {self.cases} cases, {self.dense} of them label-dense; "
            f"{self.test} test cases"
        )


_CLASSES = {"synapse": tuple(SYNAPSE_CLASSES), "acdc": tuple(ACDC_CLASSES)}
# As in the files that the paper was made with; a case of ACDC is a frame.
_PAPER = {
    "synapse": _Counts(slices=2211, cases=18, dense=1280, test=12),
    "acdc": _Counts(slices=1324, cases=140, dense=1281, test=40),
}
_SUBSETS = {"synapse": {"half-slice": 1111, "half-vol": 1088, "half-sparse": 1118}}  # slices of the paper's


def checked_store(data: Path | str | None, grid: Grid, *, phantom: bool = False) -> Store:
    """Open the store of a grid.

    One that lacks the classes of its columns, or of the paper's data set, is refused. So is the phantom for a grid of
    the paper, since its scans have the classes of Synapse, unless `phantom` says that it is meant.
    """
    if data is None:
        raise ConfigError("Expected the prepared store of the data set, but got none. Give --data, or --quick.")
    store = Store(data)
    columns = [column.class_name for column in grid.named_columns if column.class_name is not None]
    # Beside the paper's numbers, and under its captions, only its own data set makes sense.
    of_dataset = _CLASSES.get(grid.dataset, ()) if grid.source else ()
    absent = [name for name in (*columns, *of_dataset) if name not in store.class_names]
    if absent:
        raise DataError(
            f"Expected a store with the classes of the table, but {store.path} ({store.dataset}) has no {absent[0]!r}. "
            f"Near names: {near(absent[0], store.class_names)}. Prepare the data set {grid.dataset or 'it is of'}."
        )
    if phantom_mark(store, grid) and not phantom:
        raise DataError(
            f"Expected a store of {grid.dataset}, but {store.path} says that it is {store.dataset}: drawn scans with "
            f"the same classes. Give the store of the real ones (adawac prepare {grid.dataset}). For a trial take "
            "--quick; --phantom runs the whole grid on this store, with numbers that are not the paper's."
        )
    return store


def check_scorable(store: Store, configs: Iterable[tuple[TrainConfig, str]]) -> None:
    """Refuse a store on which runs could be trained but not validated or scored: that would show after days only.

    `configs` are those of the runs, whose splits and seeds say who tests, each with the part that is scored.
    """
    check_sliced(store)
    kinds = {(config.data.split, config.seed, bool(config.validation.every), part): None for config, part in configs}
    for split, seed, validates, scored in kinds:
        table = resolve_split(store.table, split, seed)
        needed = {"train": "trained", **({"val": "validated"} if validates else {}), scored: "scored"}
        for part, verb in needed.items():
            cases = table.take(table.split == part)
            if not labelled(cases).any():
                problem = f"none of its {len(cases.cases)} has a label" if len(cases) else "there are none"
                raise DataError(
                    f"Expected labelled {part} cases in the split {split!r} of {store.path}, but {problem}: no run "
                    f"could be {verb}. Prepare a store that has them, or choose another split (--set "
                    "data.split=stratified)."
                )


def phantom_mark(store: Store, grid: Grid) -> str:
    """Return what must stand above numbers of the phantom in a grid of the paper; nothing for other stores."""
    drawn = store.info.get("source") == "PhantomSource" or store.dataset.startswith("phantom")
    if not grid.source or not drawn:
        return ""
    return (
        f"PHANTOM: drawn scans ({store.dataset}) in the place of {grid.dataset}. These are not the paper's numbers, "
        "nor comparable to them."
    )


def describe_store(store: Store, grid: Grid, rows: Sequence[Row]) -> str:
    """Say what the numbers are of: the data set that the store says it is, and what there was to train and test on.

    The counts stand beside the paper's; where splits are not the paper's, who trains is another question for each.
    """
    sentences = []
    if _is_another(store, grid) and not phantom_mark(store, grid):  # which says so itself
        sentences.append(
            f"The store says that it is {store.dataset} and not {grid.dataset}: ours are numbers of {store.dataset}, "
            "which those of the paper are not."
        )
    if all(row.config.data.split == "paper" for row in rows):
        counts, paper = _count(store), _PAPER.get(grid.dataset) if grid.source else None
        beside = "." if paper is None else ", as in the paper." if counts == paper else f". The paper had {paper}."
        sentences.append(f"Data: {counts}{beside}")
        ours, theirs = _subsets(store, grid, rows)
        if ours:
            beside = ", as in the paper." if ours == theirs else f". The paper had {_listed(theirs)}."
            sentences.append(f"Slices of the subsets: {_listed(ours)}{beside}")
    return " ".join(sentences)


def is_papers_data(store: Store, grid: Grid, rows: Sequence[Row]) -> bool:
    """Tell whether a store is, as far as names and counts can say, what a grid of the paper was run on."""
    ours, theirs = _subsets(store, grid, rows)
    return not _is_another(store, grid) and _count(store) == _PAPER.get(grid.dataset) and ours == theirs


def _subsets(store: Store, grid: Grid, rows: Sequence[Row]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many slices the subsets of a grid of the paper have here, and how many they had there.

    Slices that are counted from 1, or cases of other names, give other halves than the paper's.
    """
    paper = _SUBSETS.get(grid.dataset, {}) if grid.source else {}
    seeds: dict[str, int] = {row.config.data.subset: row.config.seed for row in rows if row.config.data.subset in paper}
    train = store.table.take(store.table.split == "train")
    ours = {subset: int(subset_mask(train, subset, seed).sum()) for subset, seed in seeds.items()}
    return ours, {subset: paper[subset] for subset in seeds}


def _listed(subsets: dict[str, int]) -> str:
    return ", ".join(f"{subset} {count}" for subset, count in subsets.items())


def _is_another(store: Store, grid: Grid) -> bool:
    return bool(grid.source and grid.dataset) and store.dataset.lower() != grid.dataset


def _count(store: Store) -> _Counts:
    table = store.table
    train, test = table.take(table.split == "train"), table.take((table.split == "test") & labelled(table))
    return _Counts(
        slices=len(train),
        cases=len(train.cases),
        dense=int(train.label_dense.sum()),
        test=len(test.cases),  # those without a label are not scored
    )
