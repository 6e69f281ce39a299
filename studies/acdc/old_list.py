"""The list of runs on ACDC, `acdc_runs.yaml`, as data: which runs there are, in which order, and how they are shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adawac.config import TrainConfig, leaves, override
from adawac.config.schema import parse

if TYPE_CHECKING:
    from adawac.algorithm import Criterion

LIST = Path(__file__).with_name("acdc_runs.yaml")
# What a result does not depend on: where the data lies and is kept, and how often the run is saved.
_BOOKKEEPING = ("data.store", "data.residence", "checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run: a row of a table with a seed.

    Attributes:
        name: Also that of its folder.
        group, row: Where it is shown.
        seed: Its seed.
        changes: Its settings, by dotted path.
        part: What it is scored on: `test`, or `val` for a candidate that is not to see the test cases.
        tta: Scored with test-time augmentation.
    """

    name: str
    group: str
    row: str
    seed: int
    changes: dict[str, Any]
    part: str = "test"
    tta: bool = False

    def config(self, store: Path | None) -> TrainConfig:
        """Return the configuration; a split given as a path is a folder of lists beside this file."""
        config = override(TrainConfig(), {**self.changes, "seed": self.seed, "data.store": store})
        lists = LIST.parent / config.data.split
        return override(config, {"data.split": str(lists)}) if lists.is_dir() else config


@dataclass(frozen=True, kw_only=True)
class Block:
    """Runs that are shown as one table.

    Attributes:
        title: What they have in common.
        settings: Their settings, as far as they are not those of all runs.
        labels: What each row is called, by its name; rows of other blocks may stand among them.
        compare: Pairs of rows, of which the second is subtracted from the first seed by seed.
        published: For some rows, what a publication has instead: a `label`, and the DSC in % of each class and `mean`.
        runs: The runs, seed by seed.
    """

    title: str
    settings: dict[str, Any]
    labels: dict[str, str]
    compare: list[tuple[str, str]]
    published: dict[str, dict[str, Any]]
    runs: list[Planned]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Blocks that answer one question; `text` says how, whatever the answer is."""

    name: str
    title: str
    text: str
    blocks: list[Block]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All runs.

    Attributes:
        groups: The runs, in order of priority.
        rates: For each network, slices/s with one view and with two, until they are measured.
        overhead: Seconds that a run takes besides its steps, until they are measured.
        short: What the first pages show: a line's name, its row without AdaWAC and its row with it.
        weights: Tables of what became of weights, by their titles: rows, with what they are called there.
    """

    groups: list[Group]
    rates: dict[str, dict[int, float]] = field(default_factory=dict)
    overhead: float = 20.0
    short: list[tuple[str, str, str]] = field(default_factory=list)
    weights: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def runs(self) -> list[Planned]:
        """All runs, in order."""
        return [run for group in self.groups for block in group.blocks for run in block.runs]

    def chosen(self, patterns: list[str] | None) -> list[Planned]:
        """Return the runs whose group or name matches a pattern, those of the first pattern first; all without any."""
        if not patterns:
            return self.runs
        matching = (run for one in patterns for run in self.runs if fnmatch(run.group, one) or fnmatch(run.name, one))
        return list({run.name: run for run in matching}.values())


def read_list(path: Path = LIST) -> Listing:
    """Read a list of runs."""
    data = parse(path.read_bytes())
    groups = [
        Group(
            name=name,
            title=one["title"],
            text=one["text"],
            blocks=[_block(name, block, data["set"]) for block in one["blocks"]],
        )
        for name, one in data["groups"].items()
    ]
    names = [run.name for group in groups for block in group.blocks for run in block.runs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"Expected names that differ, but {path} has these twice: {', '.join(sorted(twice))}.")
    return Listing(
        groups=groups,
        rates=data["rates"],
        overhead=data["overhead"],
        short=[(label, without, given) for label, without, given in data.get("short", [])],
        weights=data.get("weights", {}),
    )


def _block(group: str, block: dict[str, Any], shared: dict[str, Any]) -> Block:
    common = {**shared, **block.get("set", {})}
    seeds = {row: one.get("seeds", block["seeds"]) for row, one in block["rows"].items()}
    runs = [
        Planned(
            name=f"{row}-seed{seed}",
            group=group,
            row=row,
            seed=seed,
            changes={**common, **one.get("set", {})},
            part=block.get("part", "test"),
            tta=block.get("tta", False),
        )
        for seed in sorted(set().union(*seeds.values()))
        for row, one in block["rows"].items()
        if seed in seeds[row]
    ]
    labels = {**block.get("beside", {}), **{row: one["label"] for row, one in block["rows"].items()}}
    return Block(
        title=block["title"],
        settings=block.get("set", {}),
        labels=labels,
        compare=[(first, second) for first, second in block.get("compare", [])],
        published=block.get("published", {}),
        runs=runs,
    )


def settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, by dotted path: what a result depends on.

    Args:
        data: A configuration as plain data; settings that only another version knows are passed over.
    """
    found = {}
    for leaf in leaves(TrainConfig):
        section, _, name = leaf.path.rpartition(".")
        value = (data.get(section, {}) if section else data).get(name, leaf.default)
        if value != leaf.default and leaf.path not in _BOOKKEEPING:
            found[leaf.path] = value
    if "/" in found.get("data.split", ""):
        found["data.split"] = Path(found["data.split"]).name
    return found


def num_views(config: TrainConfig) -> int:
    """Return how many views of a sample a run looks at."""
    criterion = _criterion(config)
    return 2 if criterion.uses_latents or criterion.objective.views == "both" else 1


def uses_consistency(config: TrainConfig) -> bool:
    """Tell whether a run compares the features of two views."""
    return _criterion(config).uses_latents


def _criterion(config: TrainConfig) -> "Criterion":
    from adawac.methods import build_method

    method = config.method
    return build_method(method.name, 1, method.preset, **{"trim_ratio": 0.0, **method.options})
