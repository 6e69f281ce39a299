"""The store that a grid is run on: whether it is of the grid's data set, and how it compares to what the paper had."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adawac.data.sources.acdc import CLASSES as ACDC_CLASSES
from adawac.data.sources.synapse import CLASSES as SYNAPSE_CLASSES
from adawac.data.store import Store
from adawac.errors import ConfigError, DataError, near
from adawac.reproduction.grids import Grid, Row

__all__ = ["checked_store", "describe_store"]


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


def checked_store(data: Path | str | None, grid: Grid) -> Store:
    """Open the store of a grid; one that lacks the classes of its columns, or of the paper's data set, is refused."""
    if data is None:
        raise ConfigError("Expected the prepared store of the data set, but got none. Give --data, or --quick.")
    store = Store(data)
    columns = [column.class_name for column in grid.named_columns if column.class_name is not None]
    # Beside the paper's numbers, and under its captions, only its own data set makes sense.
    of_dataset = _CLASSES.get(grid.dataset, ()) if grid.source else ()
    absent = [one for one in (*columns, *of_dataset) if one not in store.class_names]
    if absent:
        raise DataError(
            f"Expected a store with the classes of the table, but {store.path} ({store.dataset}) has no {absent[0]!r}. "
            f"Near names: {near(absent[0], store.class_names)}. Prepare the data set {grid.dataset or 'it is of'}."
        )
    return store


def describe_store(store: Store, grid: Grid, rows: Sequence[Row]) -> str:
    """Say what runs had to train and to be tested on, beside what the paper had; nothing where splits are not its."""
    if any(row.config.data.split != "paper" for row in rows):
        return ""
    table = store.table
    train = table.take(table.split == "train")
    counts = _Counts(
        slices=len(train),
        cases=len(train.cases),
        dense=int((~train.label_sparse).sum()),
        test=len(table.take(table.split == "test").cases),
    )
    paper = _PAPER.get(grid.dataset) if grid.source else None
    if paper is None:
        return f"Data: {counts}."
    return f"Data: {counts}, as in the paper." if counts == paper else f"Data: {counts}. The paper had {paper}."
