"""Which samples train: the paper's subsets, folds by patient, user lists; no patient stands on two sides."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, SampleTable, rows_by_value
from adawac.errors import ConfigError, DataError, MissingFileError, check_known, near, reading

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
SUBSETS = ("full", "half-slice", "half-vol", "half-sparse")

# The nine cases that the paper drew; elsewhere half-vol is a seeded half of the patients.
_HALF_VOL = {"synapse": tuple(f"case{number:04d}" for number in (5, 7, 9, 10, 26, 27, 33, 34, 39))}
# How many of the patients train, validate and test unless others are asked for.
_SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
_LIST_FILES = {"train": ("train.txt",), "val": ("val.txt",), "test": ("test.txt", "test_vol.txt")}
_SLICE_NAME = re.compile(r"(?P<case>.+)_slice_?(?P<number>\d+)")
_FOLD = re.compile(r"fold:(?P<fold>\d+)/(?P<count>\d+)(?P<all>/all)?")


def check_leaks(patient: Array, split: Array) -> None:
    """Raise a `DataError` if a patient has samples in two splits; `""` is no split."""
    sides: dict[str, set[str]] = {}
    for name, side in zip(patient.tolist(), split.tolist(), strict=True):
        sides.setdefault(name, set()).update([side] if side else [])
    if leaks := sorted(name for name, of_patient in sides.items() if len(of_patient) > 1):
        raise DataError(
            f"Expected each patient in one split, but {leaks[0]!r} is in {' and '.join(sorted(sides[leaks[0]]))} "
            f"({len(leaks)} such). Move all scans of a patient to one side."
        )


def subset_mask(table: SampleTable, subset: str = "full", seed: int = 0) -> npt.NDArray[np.bool_]:
    """Return which rows of a training table belong to one of the paper's subsets (Section 5.1).

    Args:
        table: All training samples; slice counts are taken from it.
        subset: `full`; `half-slice`, even slice numbers; `half-vol`, the paper's nine Synapse cases or half of the
            patients; `half-sparse`, the first half of each case, slice number ≤ n // 2.
        seed: Draws the patients of `half-vol`.
    """
    check_known(subset, SUBSETS, "a subset", ConfigError)
    if subset == "full":
        return np.ones(len(table), dtype=bool)
    if subset == "half-vol":
        return _half_of_patients(table, seed)
    if (table.unit != "slice").any():
        raise ConfigError(f"Expected slices for subset {subset}, but got whole volumes. Use full or half-vol.")
    if subset == "half-slice":
        return np.asarray(table.slice % 2 == 0)
    _, case, counts = np.unique(table.case, return_inverse=True, return_counts=True)
    return np.asarray(table.slice <= counts[case] // 2)


def _half_of_patients(table: SampleTable, seed: int) -> npt.NDArray[np.bool_]:
    dataset = table.id[0].split("/")[0] if len(table) else ""
    listed = np.isin(table.case, _HALF_VOL.get(dataset.lower(), ()))
    if listed.any():
        return listed
    patients = np.unique(table.patient)
    chosen = np.random.default_rng(seed).permutation(patients)[: max(1, len(patients) // 2)]
    return np.isin(table.patient, chosen)


def _shuffled_groups(patient: Array, group: Array, seed: int) -> list[list[str]]:
    """Return the patients of each group, shuffled."""
    members: dict[str, list[str]] = {}
    pairs = sorted(set(zip(patient.tolist(), group.tolist(), strict=True)))
    for (name, first), (other, second) in pairwise(pairs):
        if name == other:
            raise DataError(
                f"Expected one group per patient, but {name!r} has {first!r} and {second!r}. Fix the groups."
            )
    for name, its_group in pairs:
        members.setdefault(its_group, []).append(name)
    generator = np.random.default_rng(seed)
    return [generator.permutation(members[its_group]).tolist() for its_group in sorted(members)]


def stratified_folds(patient: Array, group: Array, count: int, seed: int = 0) -> dict[str, int]:
    """Deal the patients into `count` folds so that each group is spread evenly.

    Patients of a group are shuffled and dealt one by one; each group goes on where the last one stopped, so fold sizes
    differ by one at most, in total and within each group.
    """
    dealt = [name for members in _shuffled_groups(patient, group, seed) for name in members]
    if not 2 <= count <= len(dealt):
        raise ConfigError(f"Expected 2 to {len(dealt)} folds (one patient each at least), but got {count}.")
    return {name: number % count for number, name in enumerate(dealt)}


def fold_split(table: SampleTable, fold: int, count: int, seed: int = 0, *, with_test: bool = False) -> Array:
    """Return a split column in which fold `fold` of `count` is `val` and the others `train`.

    `test` stays `test`, unless its patients are dealt, too (`with_test`). Samples without a label go with their case; a
    case without any is in no split, unless that is `test` already.
    """
    if not 0 <= fold < count:
        raise ConfigError(f"Expected a fold from 0 to {count - 1}, but got {fold}. Folds count from 0.")
    test = (table.split == "test") & (not with_test)
    dealt = ~test & labelled(table)
    folds = stratified_folds(table.patient[dealt], table.group[dealt], count, seed)
    held_out = np.array([folds.get(patient) == fold for patient in table.patient.tolist()])
    known = np.isin(table.case, table.case[dealt])
    return np.where(test, "test", np.where(~known, "", np.where(held_out, "val", "train")))


def stratified_split(table: SampleTable, seed: int = 0, shares: Mapping[str, float] | None = None) -> Array:
    """Return a split column drawn by patient, each group divided by `shares` (70 / 10 / 20 % by default).

    On ACDC it is an alternative to the paper's split, whose test set is, as far as is known, one pathology that
    training never sees. Without groups, three patients are enough: each side has one at least. Samples without a label
    go with their case; cases without any are in none.
    """
    shares = dict(shares or _SHARES)
    if set(shares) - set(SPLITS) or min(shares.values()) <= 0 or not np.isclose(sum(shares.values()), 1.0):
        raise ConfigError(f"Expected shares of {', '.join(SPLITS)} that sum to 1, but got {shares}.")
    dealt = labelled(table)
    side_of = _deal_sides(table.patient[dealt], table.group[dealt], seed, shares)
    known = np.isin(table.case, table.case[dealt])
    return np.where(known, np.array([side_of.get(patient, "") for patient in table.patient.tolist()]), "")


def _deal_sides(patient: Array, group: Array, seed: int, shares: Mapping[str, float]) -> dict[str, str]:
    """Return the side of each patient; none left for a side is a `DataError`."""
    names, edges = list(shares), np.cumsum(list(shares.values()))[:-1]
    side_of: dict[str, str] = {}
    groups = _shuffled_groups(patient, group, seed)
    for members in groups:
        sides = np.searchsorted(edges, (np.arange(len(members)) + 0.5) / len(members))
        side_of |= {patient: names[side] for patient, side in zip(members, sides, strict=True)}
    if len(groups) == 1 and len(side_of) >= len(names):
        _fill_sides(side_of, names)
    if missing := [name for name in names if name not in side_of.values()]:
        grouped = len(groups) > 1
        raise DataError(
            f"Expected patients that can be divided into {', '.join(names)}, but {len(side_of)} labelled ones"
            f"{f' in {len(groups)} groups' if grouped else ''} leave none for {missing[0]}. "
            f"Use folds (fold:0/{max(2, len(side_of))}) or lists{', or no groups' if grouped else ''}."
        )
    return side_of


def suggest_split(patient: Array, group: Array, split: Array) -> str:
    """Return a split that divides labelled samples or cases, unless their source's says who trains and who tests.

    Returns:
        `stratified` or folds, whichever the number of patients allows; empty where none is needed, or for one patient.
    """
    if {"train", "test"} <= set(split.tolist()):
        return ""
    try:
        _deal_sides(patient, group, 0, _SHARES)
    except DataError:
        count = len(set(patient.tolist()))
        return f"fold:0/{min(5, count)}" if count > 1 else ""
    return "stratified"


def labelled(table: SampleTable) -> npt.NDArray[np.bool_]:
    """Say which samples have a label: the others cannot be scored."""
    return ~table.unlabelled


def _fill_sides(side_of: dict[str, str], names: Sequence[str]) -> None:
    """Give a patient of the largest side to each side that has none."""
    for name in names:
        if name not in side_of.values():
            largest, _ = Counter(side_of.values()).most_common(1)[0]
            last = [patient for patient, side in side_of.items() if side == largest][-1]
            side_of[last] = name


def list_split(table: SampleTable, lists: Mapping[str, Path | Sequence[str]]) -> Array:
    """Return a split column from lists of patients, cases, sample ids or TransUNet's slice names.

    Args:
        table: The samples; those that no list names get `""` and are not used.
        lists: For each split a text file, one name per line, or the names themselves.
    """
    split = np.full(len(table), "", dtype="<U8")
    columns = rows_by_value(table.patient), rows_by_value(table.case), rows_by_value(table.id)
    of_case, nothing = columns[1], np.array([], dtype=np.int64)
    for side, names in lists.items():
        if side not in SPLITS:
            raise ConfigError(f"Expected lists for {', '.join(SPLITS)}, but got {side!r}. Rename it.")
        where = names if isinstance(names, Path) else f"the {side} list"
        for name in _read_list(names) if isinstance(names, Path) else names:
            rows = np.unique(np.concatenate([column.get(name, nothing) for column in columns]))
            stem = name.removesuffix(".npz").removesuffix(".h5").removesuffix(".npy")
            if not len(rows) and (sliced := _SLICE_NAME.fullmatch(stem)):
                rows = of_case.get(sliced["case"], nothing)
                rows = rows[table.slice[rows] == int(sliced["number"])]
            if not len(rows):
                rows = of_case.get(stem, nothing)
            if not len(rows):
                raise DataError(
                    f"Expected a patient, case or sample of the store in {where}, but got {name!r}. "
                    f"Near names: {near(name, {*table.patient.tolist(), *table.case.tolist()})}."
                )
            if taken := set(split[rows].tolist()) - {"", side}:
                raise DataError(
                    f"Expected {name!r} in one list, but it is in {side} and {taken.pop()}. Remove one of them."
                )
            split[rows] = side
    check_leaks(table.patient, split)
    return split


def _read_list(path: Path) -> list[str]:
    if not path.is_file():
        raise MissingFileError(f"Expected a list of cases, but {path} is not there. Correct the path.")
    with reading(lambda reason: DataError(f"Expected a list of cases in UTF-8, but {path} cannot be read ({reason}).")):
        lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def resolve_split(
    table: SampleTable, spec: str = "paper", seed: int = 0, *, with_unlabelled: bool = False
) -> SampleTable:
    """Return the table with the split column that `spec` asks for.

    Args:
        table: A store's table.
        spec: `paper`, the source's own (the paper's for ACDC and Synapse); `stratified`, drawn by patient and group;
            `fold:0/5`, fold 0 of 5 as `val` (`fold:0/5/all` deals the test patients, too); or a folder with
            `train.txt`, `val.txt`, `test.txt`.
        seed: Draws `stratified` and the folds.
        with_unlabelled: Cases without any label, which these leave out, go with their patient, or train.
    """
    resolved = _resolve(table, spec, seed)
    if not with_unlabelled or (spec != "stratified" and not _FOLD.fullmatch(spec)):
        return resolved
    side_of = {
        patient: side for patient, side in zip(table.patient.tolist(), resolved.split.tolist(), strict=True) if side
    }
    sides = np.array([side_of.get(patient, "train") for patient in table.patient.tolist()])
    return resolved.with_split(np.where((resolved.split == "") & table.unlabelled, sides, resolved.split))


def _resolve(table: SampleTable, spec: str, seed: int) -> SampleTable:
    if spec == "paper":
        return table.with_split(table.split)
    if spec == "stratified":
        return table.with_split(stratified_split(table, seed))
    if fold := _FOLD.fullmatch(spec):
        numbers = int(fold["fold"]), int(fold["count"])
        return table.with_split(fold_split(table, *numbers, seed, with_test=fold["all"] is not None))
    check_spec(spec)
    folder = Path(spec)
    lists = {side: folder / name for side, names in _LIST_FILES.items() for name in names if (folder / name).is_file()}
    return table.with_split(list_split(table, lists))


def check_spec(spec: str) -> None:
    """Refuse what `resolve_split` cannot make a split of, whatever the table."""
    drawn = spec in ("paper", "stratified") or _FOLD.fullmatch(spec)
    if not drawn and not (Path(spec) / "train.txt").is_file():
        raise ConfigError(f"Expected paper, stratified, fold:K/N or a folder with train.txt, but got {spec!r}.")
