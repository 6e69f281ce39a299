"""A grid of runs, read from YAML: axes whose product is trained, columns that are measured, the paper's numbers."""

# ruff: noqa: RUF009  (`setting` is `dataclasses.field` with a help text)

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from adawac.config import Config, TrainConfig, leaves, load, override, setting
from adawac.config.settings import recipe_path
from adawac.errors import ConfigError, MissingFileError, UnknownNameError, near
from adawac.evaluation.evaluation_record import METRICS

__all__ = ["Column", "Drawing", "Grid", "Number", "Row", "grid_names", "load_grid"]

_FOLDER = Path(__file__).parent / "paper"
_ENDINGS = (".yaml", ".yml")
# Axes that are called shorter than the settings they change.
_SHORT = {"method": "method.name", "preset": "method.preset", "subset": "data.subset", "model": "model.name"}
# What a grid decides for its runs by itself: a setting of that name would change nothing.
_GIVEN = {"seed": "the list of seeds in the grid's file", "data.store": "the option --data"}
_NUMBER = re.compile(r"(?P<mean>-?\d+(\.\d+)?)\s*(±\s*(?P<std>\d+(\.\d+)?))?")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number of the paper; None as standard deviation where it gives none (NaN would not equal itself)."""

    mean: float
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column of a table measures: a metric of one class, or (None) of the mean over classes."""

    name: str
    metric: str
    class_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure: its name in `adawac.figures`, its options, its width."""

    name: str
    options: dict[str, Any]
    width: Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration of a grid, to be run once for each seed.

    Attributes:
        labels: What each axis calls it.
        config: The configuration; the seed is to be set, and the store.
    """

    labels: dict[str, str]
    config: TrainConfig

    def without(self, axis: str) -> tuple[str, ...]:
        """Return the labels of all axes but one."""
        return tuple(label for name, label in self.labels.items() if name != axis)


@dataclass(frozen=True, kw_only=True)
class Grid(Config):
    """A table or figure as data; `docs/how-to/reproduce.md` explains the file."""

    title: str = setting("", "What it shows.")
    source: str = setting("", "Where the paper's numbers stand.")
    note: str = setting("", "What a reader should know of them.")
    dataset: str = setting("", "The data set that the numbers are of; decides what --quick draws.")
    recipe: str | dict[str, Any] = setting("", "The configuration that all runs begin with, or one for each preset.")
    settings: dict[str, Any] = setting({}, "Settings that all runs change, by their dotted path.")
    convention: Literal["strict", "adawac", "transunet", "nan"] = setting("strict", "What empty masks score.")
    seeds: tuple[int, ...] = setting((1234,), "A run for each.", least=0)
    axes: dict[str, Any] = setting({}, "What the runs differ in: for each axis values, or names with settings.")
    exceptions: tuple[Any, ...] = setting((), "Settings for some combinations: {when: {axis: name}, set: {…}}.")
    columns: dict[str, Any] = setting({}, "What is measured: {name: {metric: dice, class: liver}}.")
    paper: dict[str, Any] = setting({}, "The paper's numbers, by the names on the last axes, in the columns' order.")
    figures: tuple[Any, ...] = setting((), "What is drawn of the runs: {draw: weights, options: {…}, width: text}.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong beyond a single field."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield "seeds", "expected at least one seed, each once. Correct the list."
        if not self.axes:
            yield "axes", "expected what the runs differ in, such as method: [baseline, adawac]. Add it."
        if not self.columns and not self.figures:
            yield "columns", "expected what is measured, or figures to draw. Add columns or figures."
        for axis, values in self.axes.items():
            yield from self._axis_problems(axis, values)
        for name, one in self.columns.items():
            if not isinstance(one, dict) or one.get("metric") not in METRICS or set(one) - {"metric", "class"}:
                yield (
                    f"columns.{name}",
                    f"expected {{metric: {' or '.join(METRICS[:2])}, class: NAME}}, but got {one!r}.",
                )
        for place, one in enumerate(self.exceptions):
            if not isinstance(one, dict) or set(one) != {"when", "set"} or not _are_mappings(one.values()):
                yield f"exceptions.{place}", f"expected {{when: {{…}}, set: {{…}}}}, but got {one!r}."
            else:
                yield from self._exception_problems(f"exceptions.{place}.when", one["when"])
        for place, one in enumerate(self.figures):
            if not isinstance(one, dict) or "draw" not in one or set(one) - {"draw", "options", "width"}:
                yield f"figures.{place}", f"expected {{draw: NAME, options: {{…}}, width: text}}, but got {one!r}."

    def _axis_problems(self, axis: str, values: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(values, list | dict) or not values:
            yield f"axes.{axis}", f"expected a list of values, or names with settings, but got {values!r}."
            return
        plain = values if isinstance(values, list) else [one for one in values.values() if not isinstance(one, dict)]
        if plain and _setting_of(axis) is None:
            known = [*_SHORT, *(leaf.path for leaf in leaves(TrainConfig))]
            yield f"axes.{axis}", f"expected a setting, but got {axis!r}. Near names: {near(axis, known)}."
        names = [str(one) for one in values]
        if len(set(names)) < len(names):
            yield f"axes.{axis}", f"expected each value once, but got {values!r}."

    def _exception_problems(self, where: str, when: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what lets an exception hold nowhere; a preset may come by --preset."""
        for axis, label in when.items():
            values = self.axes.get(axis)
            names = [str(one) for one in values] if isinstance(values, list | dict) else []
            if axis not in (*self.axes, "preset"):
                yield where, f"expected an axis of the grid, but got {axis!r}. Near names: {near(axis, self.axes)}."
            elif axis != "preset" and str(label) not in names:
                told = f"expected a name on that axis, but got {label!r}. Near names: {near(str(label), names)}."
                yield f"{where}.{axis}", told

    @cached_property
    def named_columns(self) -> tuple[Column, ...]:
        """The columns in their order."""
        return tuple(
            Column(name=name, metric=one["metric"], class_name=one.get("class")) for name, one in self.columns.items()
        )

    @cached_property
    def drawings(self) -> tuple[Drawing, ...]:
        """The figures in their order."""
        return tuple(
            Drawing(name=one["draw"], options=one.get("options") or {}, width=one.get("width", "column"))
            for one in self.figures
        )

    @cached_property
    def telling(self) -> dict[str, str]:
        """The settings that tell rows apart, by their dotted path, and what sets each."""
        found: dict[str, str] = {}
        for axis, values in self.axes.items():
            for _, own in _choices(axis, values):
                found |= dict.fromkeys(_paths(own), f"the axis {axis}")
        for one in self.exceptions:
            found |= dict.fromkeys(_paths(one["set"]), "an exception")
        return found

    def check_changes(self, changes: Mapping[str, Any]) -> None:
        """Refuse to change in all runs what tells rows apart: names would stand beside the runs of others."""
        decided = {"method.preset": "the recipe of each preset"} if isinstance(self.recipe, dict) else {}
        decided |= self.telling | _GIVEN
        for path in _paths(changes):
            if path in decided:
                other = "choose with --preset" if path == "method.preset" else "write a grid of your own"
                raise ConfigError(
                    f"Expected settings that all rows share (--set), but got {path}, which {decided[path]} decides: a "
                    f"row would not hold what its name says. Leave it out, or {other}."
                )

    @property
    def compared(self) -> str:
        """The axis whose order is compared with the paper's: the last one."""
        return list(self.axes)[-1]

    def rows(self, first: Mapping[str, Any] | None = None, last: Mapping[str, Any] | None = None) -> list[Row]:
        """Return every combination of the axes.

        Args:
            first: Settings below those of the axes.
            last: Settings above everything else.
        """
        choices = [[(axis, *pair) for pair in _choices(axis, values)] for axis, values in self.axes.items()]
        rows = []
        bases: dict[str, TrainConfig] = {}
        for combination in itertools.product(*choices):
            labels = {axis: label for axis, label, _ in combination}
            changes = {**self.settings, **(first or {})}
            for _, _, own in combination:
                changes |= own
            for one in self.exceptions:
                if all(labels.get(axis) == str(label) for axis, label in one["when"].items()):
                    changes |= one["set"]
            base = self._base(str(changes.get("method.preset", "paper")), bases)
            config = _without_nulls(override(base, {**changes, **(last or {})}))
            rows.append(Row(labels=labels, config=config))
        return rows

    def _base(self, preset: str, read: dict[str, TrainConfig]) -> TrainConfig:
        if isinstance(self.recipe, dict) and preset not in self.recipe:
            raise ConfigError(f"Expected a recipe for the preset {preset!r}, but got {', '.join(self.recipe)}. Add it.")
        name = self.recipe[preset] if isinstance(self.recipe, dict) else self.recipe
        if name not in read:
            read[name] = load(TrainConfig, recipe_path(name)) if name else TrainConfig()
        return read[name]

    def printed(self, row: Row) -> dict[str, Number]:
        """Return the paper's numbers for a row, by column; axes that the paper does not have are passed over."""
        found = _leaf(self.paper, row)
        if not isinstance(found, list):
            return {}
        return {name: _number(value) for name, value in zip(self.columns, found, strict=True) if value is not None}

    def with_presets(self, presets: tuple[str, ...]) -> "Grid":
        """Return the grid with other presets, on its own axis or, without one, on a first one."""
        if "preset" not in self.axes and "method.preset" in self.telling:
            by = self.telling["method.preset"]
            raise ConfigError(f"Expected a grid whose preset can be chosen, but {by} sets it. Leave --preset out.")
        axes = self.axes if "preset" in self.axes else {"preset": [], **self.axes}
        return replace(self, axes={**axes, "preset": list(presets)})


def grid_names() -> dict[str, str]:
    """Return the tables and figures that come with the package, with their titles."""
    paths = sorted(_FOLDER.glob("*.yaml"), key=lambda path: (path.stem.startswith("figure"), path.stem))
    return {path.stem: load(Grid, path).title for path in paths}


def load_grid(name: Path | str) -> tuple[str, Grid]:
    """Return the short name and the grid that `name` means: one of `grid_names`, or a YAML file.

    Raises:
        UnknownNameError: For a name that is neither.
        ConfigError: With everything that is wrong in a file.
    """
    path = Path(name)
    if path.suffix not in _ENDINGS and len(path.parts) < 2:
        path = _FOLDER / f"{name}.yaml"
        if not path.is_file():
            known = [one.stem for one in _FOLDER.glob("*.yaml")]
            raise UnknownNameError(
                f"Expected a table or figure of the paper, or a YAML file, but got {str(name)!r}. Near names: "
                f"{near(str(name), known)}. See `adawac reproduce --list`."
            )
    if not path.is_file():
        raise MissingFileError(f"Expected a YAML file with a grid, but {path} does not exist. Check the path.")
    grid = load(Grid, path)
    for one in (*_paths(grid.settings), *grid.telling):
        if one in _GIVEN:
            raise ConfigError(
                f"Expected settings of runs in {path}, but got {one}, which {_GIVEN[one]} decides. Leave it out."
            )
    _check_paper(grid, path)
    return path.stem, grid


def _check_paper(grid: Grid, path: Path) -> None:
    """Refuse numbers that belong to no row, or that are more or fewer than the columns."""
    rows = grid.rows()
    if not grid.paper:
        return
    used = {id(one) for row in rows if (one := _leaf(grid.paper, row)) is not None}
    for labels, numbers in _leaves(grid.paper):
        where = " / ".join(labels)
        if id(numbers) not in used:
            raise ConfigError(
                f"Expected numbers of a row of the grid in {path}, but paper has {where!r}. Name it as the axes do."
            )
        if not isinstance(numbers, list) or len(numbers) != len(grid.columns):
            raise ConfigError(
                f"Expected {len(grid.columns)} numbers, one for each column, for {where!r} in {path}, but got "
                f"{numbers!r}. Correct the list."
            )
        for value in numbers:
            if value is not None:
                _number(value, f" for {where!r} in {path}")


def _leaf(paper: Mapping[str, Any], row: Row) -> Any:
    found: Any = paper
    for label in row.labels.values():
        found = found.get(label, found) if isinstance(found, dict) else found
    return None if isinstance(found, dict) else found


def _leaves(paper: Mapping[str, Any], labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for label, value in paper.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*labels, label))
        else:
            yield (*labels, label), value


def _number(value: Any, where: str = "") -> Number:
    found = _NUMBER.fullmatch(str(value))
    if isinstance(value, bool) or not found:
        raise ConfigError(f"Expected a number or mean ± std{where}, but got {value!r}. Write it like 76.66 ± 0.88.")
    return Number(mean=float(found["mean"]), std=float(found["std"]) if found["std"] else None)


def _choices(axis: str, values: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the names on an axis and the settings that each stands for."""
    named = values if isinstance(values, dict) else {str(one): one for one in values}
    own = _setting_of(axis)
    return [(name, value if isinstance(value, dict) else {str(own): value}) for name, value in named.items()]


def _paths(changes: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted path of every single setting that is changed; a mapping changes what it names."""
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _setting_of(axis: str) -> str | None:
    paths = {leaf.path for leaf in leaves(TrainConfig)}
    if axis in _SHORT:
        return _SHORT[axis]
    # An option is passed on to method, network or views: its name cannot be checked here.
    inner = any(axis.startswith(f"{path}.") for path in ("method.options", "model.options", "data.views"))
    return axis if axis in paths or inner else None


def _without_nulls(config: TrainConfig) -> TrainConfig:
    """Return a configuration without options that are null: so a grid takes away what a recipe gives to its network."""

    def given(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if value is not None}

    model, method = config.model, config.method
    return replace(
        config,
        model=replace(model, options=given(model.options)),
        method=replace(method, options=given(method.options)),
    )


def _are_mappings(values: Any) -> bool:
    return all(isinstance(one, dict) for one in values)
