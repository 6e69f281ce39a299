"""Several runs: seeds of one configuration together, configurations against each other."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adawac.config.settings import ROUNDING, decisive
from adawac.errors import ConfigError
from adawac.evaluation.evaluation_record import Evaluation, plain
from adawac.evaluation.statistics import Difference, by_patient, paired_difference
from adawac.runs import Run

__all__ = [
    "Comparison",
    "Seeds",
    "by_configuration",
    "check_units",
    "compare",
    "differently_tested",
    "known_seeds",
    "over_seeds",
    "repeated_seeds",
    "to_dict",
]

# A store may be anywhere, but another data set, or one prepared otherwise, is no other seed.
_OF_STORE = ("dataset", "class_names", "channels", "preprocessing")


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """One metric of one class over the seeds of a configuration.

    Attributes:
        configuration: The configuration's name.
        metric, label, class_name: As in `adawac.evaluation.Summary`.
        mean: Mean over seeds of the mean over cases.
        std: The seeds' sample standard deviation; NaN for a single one.
        num_seeds: How many runs.
    """

    configuration: str
    metric: str
    label: int | None
    class_name: str
    mean: float
    std: float
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A configuration against the first one of the same data set, in one metric of one class.

    Attributes:
        first, second: Their names.
        metric, label, class_name: As in `adawac.evaluation.Summary`.
        difference: second − first, over patients; each patient's number is the mean over cases and seeds.
    """

    first: str
    second: str
    metric: str
    label: int | None
    class_name: str
    difference: Difference


def by_configuration(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Return the evaluations of each configuration, which its runs share but for the seed, by the name for tables."""
    groups: dict[str, list[Evaluation]] = {}
    for one in evaluations:
        groups.setdefault(_key(one), []).append(one)
    return dict(zip(_names([own[0].run for own in groups.values()]), groups.values(), strict=True))


def over_seeds(evaluations: Sequence[Evaluation]) -> list[Seeds]:
    """Return mean and standard deviation over seeds, for each configuration, metric and class."""
    found = []
    for name, own in by_configuration(evaluations).items():
        for metric, summaries in own[0].summaries.items():
            for place, summary in enumerate(summaries):
                means = np.array([one.summaries[metric][place].mean for one in own])
                found.append(
                    Seeds(
                        configuration=name,
                        metric=metric,
                        label=summary.label,
                        class_name=summary.class_name,
                        mean=float(means.mean()),
                        std=float(means.std(ddof=1)) if len(means) > 1 else math.nan,
                        num_seeds=len(means),
                    )
                )
    return found


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """Compare every configuration with the first one of its data set, for each metric and class that both have.

    Patients of two data sets may have the same name and are two all the same: those are not compared.
    """
    check_units({str(one.run.folder): one.unit for one in evaluations})
    datasets: dict[str, dict[str, list[Evaluation]]] = {}
    for name, own in by_configuration(evaluations).items():
        datasets.setdefault(own[0].dataset, {})[name] = own
    return [one for configurations in datasets.values() for one in _compare(configurations)]


def _compare(configurations: Mapping[str, list[Evaluation]]) -> list[Comparison]:
    """Compare the configurations of one data set with the first of them."""
    (first, reference), *others = configurations.items()
    found = []
    for second, own in others:
        for metric, summaries in reference[0].summaries.items():
            if any(metric not in one.metrics for one in own):
                continue
            there = {(one.label, one.class_name) for one in own[0].summaries[metric]}
            for label, name in [(one.label, one.class_name) for one in summaries]:
                if (label, name) not in there:
                    continue
                difference = paired_difference(_patients(reference, metric, label), _patients(own, metric, label))
                found.append(
                    Comparison(
                        first=first, second=second, metric=metric, label=label, class_name=name, difference=difference
                    )
                )
    return found


def to_dict(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return everything that the tables show as plain values for JSON."""
    several = len(evaluations) > 1
    return {
        "evaluations": [one.to_dict() for one in evaluations],
        "seeds": plain([asdict(one) for one in over_seeds(evaluations)]) if several else [],
        "comparisons": plain([asdict(one) for one in compare(evaluations)]) if several else [],
    }


def check_units(units: Mapping[str, str]) -> None:
    """Refuse to compare distances in mm with distances in voxels.

    Args:
        units: The unit of each run's distances, by the run's folder.
    """
    first, usual = next(iter(units.items()), ("", ""))
    for run, unit in units.items():
        if unit != usual:
            raise ConfigError(
                f"Expected runs whose distances have one unit, but those of {first} are in {usual} and those of "
                f"{run} in {unit}, as a rule because a store has lost its voxel size. Measure all in voxels "
                "(--spacing voxel), or evaluate these runs one at a time."
            )


def differently_tested(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the configurations whose seeds were not tested on the same cases, as where the seed draws the split."""
    tested = {
        name: {frozenset((score.patient, score.case) for score in one.scores) for one in own}
        for name, own in by_configuration(evaluations).items()
    }
    return [name for name, cases in tested.items() if len(cases) > 1]


def known_seeds(evaluations: Sequence[Evaluation]) -> dict[str, list[int]]:
    """Return the seeds of each configuration's runs, as far as these say: other loops may note none."""
    seeds = {name: [one.run.settings.get("seed") for one in own] for name, own in by_configuration(evaluations).items()}
    return {name: [one for one in own if one is not None] for name, own in seeds.items()}


def repeated_seeds(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the configurations of which several runs have the same seed, as a copied run has: these count twice."""
    return [name for name, own in known_seeds(evaluations).items() if len(set(own)) < len(own)]


def _patients(evaluations: Sequence[Evaluation], metric: str, label: int | None) -> dict[str, float]:
    """Return each patient's mean over seeds; a patient must be in all of them."""
    seeds = [by_patient(one.scores, metric, label) for one in evaluations]
    return {
        patient: float(np.mean([own[patient] for own in seeds]))
        for patient in seeds[0]
        if all(patient in own for own in seeds)
    }


def _key(evaluation: Evaluation) -> str:
    run = evaluation.run
    settings = decisive(run.settings, "seed", *ROUNDING)
    trained_on = {name: run.data.get(name) for name in _OF_STORE}
    return json.dumps([settings, trained_on, evaluation.dataset], sort_keys=True, default=str)


def _precision(run: Run) -> str | None:
    """Return what a run computed in, where it says so: other loops may not."""
    hardware = run.settings.get("hardware")
    return hardware.get("precision") if isinstance(hardware, dict) else None


def _names(runs: Sequence[Run]) -> list[str]:
    """Return a name for each configuration: the method, and of the rest what differs; with the folder if need be."""
    summaries = [{**run.summary, "dataset": run.data.get("dataset"), "precision": _precision(run)} for run in runs]
    told = ("preset", "model", "subset", "dataset", "precision")
    rest = [name for name in told if len({str(one.get(name)) for one in summaries}) > 1]
    words = [[str(one[name]) for name in ("method", *rest) if one.get(name)] for one in summaries]
    names = [", ".join(own) or "run" for own in words]
    for where in ([run.folder.name for run in runs], [str(run.folder) for run in runs]):
        if len(set(names)) < len(names):
            names = [f"{name} [{folder}]" for name, folder in zip(names, where, strict=True)]
    return names
