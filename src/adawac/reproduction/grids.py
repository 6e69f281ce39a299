"""A grid of runs, read from YAML: axes whose product is trained, columns that are measured, the paper's numbers."""

# ruff: noqa: RUF009  (`setting` is `dataclasses.field` with a help text)

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from adawac.config import Config, TrainConfig, leaves, load, override, setting
from adawac.config.settings import recipe_path
from adawac.errors import ConfigError, MissingFileError, UnknownNameError, near
from adawac.evaluation.evaluation_record import CASE_METRICS

_FOLDER = Path(__file__).parent / "paper"
_ENDINGS = (".yaml", ".yml")
# Axes that are called shorter than the settings they change.
_SHORT = {"method": "method.name", "preset": "method.preset", "subset": "data.subset", "model": "model.name"}
# What the grid decides for its runs: a setting of that name would change nothing.
_DECIDED = {"seed": "the list of seeds in the grid's file", "data.store": "the option --data"}
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
        seeds: A run for each.
        score: The part of the split that is scored.
        tta: Score with test-time augmentation.
        priority: Rows of a smaller number run first.
    """

    labels: dict[str, str]
    config: TrainConfig
    seeds: tuple[int, ...]
    score: Literal["test", "val"] = "test"
    tta: bool = False
    priority: int = 0

    @property
    def name(self) -> str:
        """What results call it."""
        return " / ".join(self.labels.values())

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
    more_conventions: tuple[Literal["strict", "adawac", "transunet", "nan"], ...] = setting(
        (), "Conventions to score by as well; tables show the first one."
    )
    score: Literal["test", "val"] = setting("test", "The part of the split that is scored.")
    tta: bool = setting(False, "Score with test-time augmentation.")
    seeds: tuple[int, ...] = setting((1234,), "A run for each.", least=0)
    axes: dict[str, Any] = setting({}, "What the runs differ in: for each axis values, or names with settings.")
    runs: dict[str, Any] = setting(
        {}, "Instead of axes, rows by name: {set: {…}, seeds: […], score: val, tta: true, priority: 1}."
    )
    results: str = setting("", "A JSON file of collected results; runs that it has are not run again.")
    exceptions: tuple[Any, ...] = setting((), "Settings for some combinations: {when: {axis: name}, set: {…}}.")
    columns: dict[str, Any] = setting({}, "What is measured: {name: {metric: dice, class: liver}}.")
    paper: dict[str, Any] = setting({}, "The paper's numbers, by the names on the last axes, in the columns' order.")
    figures: tuple[Any, ...] = setting((), "What is drawn of the runs: {draw: weights, options: {…}, width: text}.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong beyond a single field."""
        if not _are_seeds(self.seeds):
            yield "seeds", "expected at least one seed, each once."
        if bool(self.axes) == bool(self.runs):
            examples = "such as method: [baseline, adawac], or runs by name, not both."
            yield "axes", f"expected what the runs differ in, {examples}"
        if not self.columns and not self.figures:
            yield "columns", "expected what is measured, or figures to draw. Add columns or figures."
        for axis, values in self.axes.items():
            yield from self._axis_problems(axis, values)
        for name, run in self.runs.items():
            yield from _run_problems(f"runs.{name}", run)
        for name, column in self.columns.items():
            if not _is_mapping(column, {"metric", "class"}, {"metric"}) or column["metric"] not in CASE_METRICS:
                expected = f"{{metric: {' or '.join(CASE_METRICS[:2])}, class: NAME}}"
                yield f"columns.{name}", f"expected {expected}, but got {column!r}."
        for number, exception in enumerate(self.exceptions):
            where = f"exceptions.{number}"
            whole = _is_mapping(exception, {"when", "set"}, {"when", "set"})
            if not whole or not all(isinstance(part, dict) for part in exception.values()):
                yield where, f"expected {{when: {{…}}, set: {{…}}}}, but got {exception!r}."
            else:
                yield from self._exception_problems(f"{where}.when", exception["when"])
        for number, figure in enumerate(self.figures):
            if not _is_mapping(figure, {"draw", "options", "width"}, {"draw"}):
                yield f"figures.{number}", f"expected {{draw: NAME, options: {{…}}, width: text}}, but got {figure!r}."

    def _axis_problems(self, axis: str, values: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(values, list | dict) or not values:
            yield f"axes.{axis}", f"expected a list of values, or names with settings, but got {values!r}."
            return
        plain = values if isinstance(values, list) else [item for item in values.values() if not isinstance(item, dict)]
        if plain and _setting_of(axis) is None:
            known = [*_SHORT, *(leaf.path for leaf in leaves(TrainConfig))]
            yield f"axes.{axis}", f"expected a setting, but got {axis!r}. Near names: {near(axis, known)}."
        names = [str(value) for value in values]
        if len(set(names)) < len(names):
            yield f"axes.{axis}", f"expected each value once, but got {values!r}."

    def _exception_problems(self, where: str, when: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what lets an exception hold nowhere; a preset may come by --preset."""
        for axis, label in when.items():
            values = self.axes.get(axis)
            names = [str(value) for value in values] if isinstance(values, list | dict) else []
            if axis not in (*self.axes, "preset"):
                yield where, f"expected an axis of the grid, but got {axis!r}. Near names: {near(axis, self.axes)}."
            elif axis != "preset" and str(label) not in names:
                problem = f"expected a name on that axis, but got {label!r}. Near names: {near(str(label), names)}."
                yield f"{where}.{axis}", problem

    @cached_property
    def named_columns(self) -> tuple[Column, ...]:
        """The columns in their order."""
        return tuple(
            Column(name=name, metric=column["metric"], class_name=column.get("class"))
            for name, column in self.columns.items()
        )

    @cached_property
    def drawings(self) -> tuple[Drawing, ...]:
        """The figures in their order."""
        return tuple(
            Drawing(name=figure["draw"], options=figure.get("options") or {}, width=figure.get("width", "column"))
            for figure in self.figures
        )

    @property
    def conventions(self) -> tuple[str, ...]:
        """Every convention that runs are scored by; tables show the first one."""
        return tuple(dict.fromkeys((self.convention, *self.more_conventions)))

    @property
    def dimensions(self) -> dict[str, Any]:
        """The axes; runs that are listed by name are on a single one."""
        return self.axes or {"run": {name: run.get("set", {}) for name, run in self.runs.items()}}

    @cached_property
    def telling(self) -> dict[str, str]:
        """The settings that tell rows apart, by their dotted path, and what sets each."""
        setters: dict[str, str] = {}
        for axis, values in self.dimensions.items():
            for _, changes in _choices(axis, values):
                setters |= dict.fromkeys(_paths(changes), f"the axis {axis}")
        for exception in self.exceptions:
            setters |= dict.fromkeys(_paths(exception["set"]), "an exception")
        return setters

    def check_changes(self, changes: Mapping[str, Any]) -> None:
        """Refuse to change in all runs what tells rows apart: names would stand beside the runs of others."""
        decided = {"method.preset": "the recipe of each preset"} if isinstance(self.recipe, dict) else {}
        decided |= self.telling | _DECIDED
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
        return list(self.dimensions)[-1]

    def rows(self, first: Mapping[str, Any] | None = None, last: Mapping[str, Any] | None = None) -> list[Row]:
        """Return every combination of the axes, with settings below theirs (`first`) and above all others (`last`)."""
        choices = [[(axis, *pair) for pair in _choices(axis, values)] for axis, values in self.dimensions.items()]
        rows = []
        bases: dict[str, TrainConfig] = {}
        for combination in itertools.product(*choices):
            labels = {axis: label for axis, label, _ in combination}
            changes = {**self.settings, **(first or {})}
            for _, _, settings in combination:
                changes |= settings
            for exception in self.exceptions:
                if all(labels.get(axis) == str(label) for axis, label in exception["when"].items()):
                    changes |= exception["set"]
            base = self._base(str(changes.get("method.preset", "paper")), bases)
            config = _without_nulls(override(base, {**changes, **(last or {})}))
            run = self.runs.get(labels.get("run", ""), {})
            rows.append(
                Row(
                    labels=labels,
                    config=config,
                    seeds=tuple(run.get("seeds", self.seeds)),
                    score=run.get("score", self.score),
                    tta=run.get("tta", self.tta),
                    priority=run.get("priority", 0),
                )
            )
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
        numbers = _leaf(self.paper, row)
        if not isinstance(numbers, list):
            return {}
        return {name: _number(value) for name, value in zip(self.columns, numbers, strict=True) if value is not None}

    def with_presets(self, presets: tuple[str, ...]) -> "Grid":
        """Return the grid with other presets, on its own axis or, without one, on a first one."""
        if "preset" not in self.axes and "method.preset" in self.telling:
            by = self.telling["method.preset"]
            raise ConfigError(f"Expected a grid whose preset can be chosen, but {by} sets it. Leave --preset out.")
        if self.runs:
            raise ConfigError("Expected a grid with axes for --preset, but its runs are listed. Leave --preset out.")
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
            known = [grid_file.stem for grid_file in _FOLDER.glob("*.yaml")]
            raise UnknownNameError(
                f"Expected a table or figure of the paper, or a YAML file, but got {str(name)!r}. Near names: "
                f"{near(str(name), known)}. See `adawac reproduce --list`."
            )
    if not path.is_file():
        raise MissingFileError(f"Expected a YAML file with a grid, but {path} does not exist. Check the path.")
    grid = load(Grid, path)
    for setting_path in (*_paths(grid.settings), *grid.telling):
        if setting_path in _DECIDED:
            raise ConfigError(
                f"Expected settings of runs in {path}, but got {setting_path}, which {_DECIDED[setting_path]} decides. "
                "Leave it out."
            )
    folder = path.absolute().parent
    grid = replace(
        grid,
        settings=_with_splits(grid.settings, folder),
        axes=_with_splits(grid.axes, folder),
        runs=_with_splits(grid.runs, folder),
        results=str(folder / grid.results) if grid.results else "",
    )
    _check_paper(grid, path)
    return path.stem, grid


def _with_splits(data: Any, folder: Path) -> Any:
    """Return settings in which a split that is a folder beside the grid's file has its full path."""
    if not isinstance(data, Mapping):
        return data
    return {
        key: str(folder / value)
        if key == "data.split" and isinstance(value, str) and (folder / value / "train.txt").is_file()
        else _with_splits(value, folder)
        for key, value in data.items()
    }


def _check_paper(grid: Grid, path: Path) -> None:
    """Refuse numbers that belong to no row, or that are more or fewer than the columns."""
    rows = grid.rows()
    if not grid.paper:
        return
    used = {id(numbers) for row in rows if (numbers := _leaf(grid.paper, row)) is not None}
    for labels, numbers in _leaves(grid.paper):
        where = " / ".join(labels)
        if id(numbers) not in used:
            raise ConfigError(
                f"Expected numbers of a row of the grid in {path}, but paper has {where!r}. Name it as the axes do."
            )
        if not isinstance(numbers, list) or len(numbers) != len(grid.columns):
            raise ConfigError(
                f"Expected {len(grid.columns)} numbers, one for each column, for {where!r} in {path}, but got "
                f"{numbers!r}. Write null where the paper has none."
            )
        for value in numbers:
            if value is not None:
                _number(value, f" for {where!r} in {path}")


def _leaf(paper: Mapping[str, Any], row: Row) -> Any:
    numbers: Any = paper
    for label in row.labels.values():
        numbers = numbers.get(label, numbers) if isinstance(numbers, dict) else numbers
    return None if isinstance(numbers, dict) else numbers


def _leaves(tree: Mapping[str, Any], labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what is no mapping, with the names that lead to it."""
    for label, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*labels, label))
        else:
            yield (*labels, label), value


def _number(value: Any, where: str = "") -> Number:
    match = _NUMBER.fullmatch(str(value))
    if isinstance(value, bool) or not match:
        raise ConfigError(f"Expected a number or mean ± std{where}, but got {value!r}. Write it like 76.66 ± 0.88.")
    return Number(mean=float(match["mean"]), std=float(match["std"]) if match["std"] else None)


def _choices(axis: str, values: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the names on an axis and the settings that each stands for."""
    named = values if isinstance(values, dict) else {str(value): value for value in values}
    path = str(_setting_of(axis))
    return [(name, value if isinstance(value, dict) else {path: value}) for name, value in named.items()]


def _paths(changes: Mapping[str, Any]) -> list[str]:
    """Return the dotted path of every single setting that is changed; a mapping changes what it names."""
    return [".".join(map(str, names)) for names, _ in _leaves(changes)]


def _setting_of(axis: str) -> str | None:
    paths = {leaf.path for leaf in leaves(TrainConfig)}
    if axis in _SHORT:
        return _SHORT[axis]
    # An option is passed on to method, network or views: its name cannot be checked here.
    inner = any(axis.startswith(f"{path}.") for path in ("method.options", "model.options", "data.views"))
    return axis if axis in paths or inner else None


def _without_nulls(config: TrainConfig) -> TrainConfig:
    """Return a configuration without options that are null: so a grid takes away what a recipe gives to its network."""

    def without(part: Any) -> Any:
        return replace(part, options={name: value for name, value in part.options.items() if value is not None})

    return replace(config, model=without(config.model), method=without(config.method))


def _run_problems(where: str, run: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a run that is listed by name."""
    if not _is_mapping(run, {"set", "seeds", "score", "tta", "priority"}):
        yield where, f"expected {{set: {{…}}, seeds: […], score: val, tta: true, priority: 1}}, but got {run!r}."
        return
    kinds: dict[str, tuple[Callable[[Any], bool], str]] = {
        "set": (lambda value: isinstance(value, dict), "settings by their dotted path"),
        "seeds": (_are_seeds, "a list of whole numbers, each once"),
        "score": (lambda value: value in ("test", "val"), "test or val"),
        "tta": (lambda value: isinstance(value, bool), "true or false"),
        "priority": (lambda value: isinstance(value, int), "a whole number"),
    }
    for name, value in run.items():
        fits, expected = kinds[name]
        if not fits(value):
            yield f"{where}.{name}", f"expected {expected}, but got {value!r}."


def _are_seeds(seeds: Any) -> bool:
    return (
        isinstance(seeds, list | tuple)
        and len(set(map(str, seeds))) == len(seeds) > 0
        and all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    )


def _is_mapping(value: Any, known: set[str], needed: Set[str] = frozenset()) -> bool:
    return isinstance(value, dict) and needed <= set(value) <= known
