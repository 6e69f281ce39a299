"""Several runs: seeds of one configuration together, configurations against each other."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adawac.config.settings import ROUNDING, decisive
from adawac.errors import ConfigError
from adawac.evaluation.evaluation_record import Evaluation, PredictionFolder
from adawac.evaluation.statistics import Difference, by_patient, paired_difference
from adawac.runs import Run
from adawac.runs.layout import strict

# A store may be anywhere, but a run on another data set, or on one preprocessed differently, is not another seed.
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
    """Return the evaluations of each configuration, whose runs differ in the seed alone, by the name for tables."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(_key(evaluation), []).append(evaluation)
    return dict(zip(_names([group[0].run for group in groups.values()]), groups.values(), strict=True))


def over_seeds(evaluations: Sequence[Evaluation]) -> list[Seeds]:
    """Return mean and standard deviation over seeds, for each configuration, metric and class."""
    rows = []
    for name, seeds in by_configuration(evaluations).items():
        for metric, summaries in seeds[0].summaries.items():
            for index, summary in enumerate(summaries):
                means = np.array([seed.summaries[metric][index].mean for seed in seeds])
                rows.append(
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
    return rows


def compare(evaluations: Sequence[Evaluation]) -> list[Comparison]:
    """Compare every configuration with the first one of its data set, for each metric and class that both have.

    Runs on two data sets are not compared: patients with the same name are different people.
    """
    check_units({str(evaluation.run.folder): evaluation.unit for evaluation in evaluations})
    datasets: dict[str, dict[str, list[Evaluation]]] = {}
    for name, seeds in by_configuration(evaluations).items():
        datasets.setdefault(seeds[0].dataset, {})[name] = seeds
    return [comparison for configurations in datasets.values() for comparison in _compare(configurations)]


def _compare(configurations: Mapping[str, list[Evaluation]]) -> list[Comparison]:
    """Compare the configurations of one data set with the first of them."""
    (first, reference), *others = configurations.items()
    comparisons = []
    for second, seeds in others:
        cases = set.intersection(*(set(evaluation.cases) for evaluation in (*reference, *seeds)))
        for metric, summaries in reference[0].summaries.items():
            if any(metric not in seed.metrics for seed in seeds):
                continue
            known = {(summary.label, summary.class_name) for summary in seeds[0].summaries[metric]}
            for label, name in [(summary.label, summary.class_name) for summary in summaries]:
                if (label, name) in known:
                    difference = paired_difference(
                        _patients(reference, metric, label, cases), _patients(seeds, metric, label, cases)
                    )
                    names = {"first": first, "second": second, "metric": metric, "class_name": name}
                    comparisons.append(Comparison(**names, label=label, difference=difference))
    return comparisons


def to_dict(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return everything that the tables show as plain values for JSON."""
    several = len(evaluations) > 1
    return {
        "evaluations": [evaluation.to_dict() for evaluation in evaluations],
        "seeds": strict([asdict(seeds) for seeds in over_seeds(evaluations)]) if several else [],
        "comparisons": strict([asdict(comparison) for comparison in compare(evaluations)]) if several else [],
    }


def check_units(units: Mapping[str, str]) -> None:
    """Refuse to compare distances in mm with distances in voxels; `units` has each run's, by the run's folder."""
    first, usual = next(iter(units.items()), ("", ""))
    for run, unit in units.items():
        if unit != usual:
            raise ConfigError(
                f"Expected runs whose distances have one unit, but those of {first} are in {usual} and those of "
                f"{run} in {unit}, probably because a store has lost its voxel size. Measure all in voxels "
                "(`spacing='voxel'`), or evaluate these runs one at a time."
            )


def differently_tested(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the configurations whose seeds were not tested on the same cases, as where the seed draws the split."""
    tested = {
        name: {frozenset((score.patient, score.case) for score in seed.scores) for seed in seeds}
        for name, seeds in by_configuration(evaluations).items()
    }
    return [name for name, cases in tested.items() if len(cases) > 1]


def known_seeds(evaluations: Sequence[Evaluation]) -> dict[str, list[int]]:
    """Return the seeds of each configuration's runs, as far as these are recorded: other loops may not do so."""
    return {
        name: [seed for evaluation in group if (seed := evaluation.run.settings.get("seed")) is not None]
        for name, group in by_configuration(evaluations).items()
    }


def repeated_seeds(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the configurations of which several runs have the same seed, as a copied run has: these count twice."""
    return [name for name, seeds in known_seeds(evaluations).items() if len(set(seeds)) < len(seeds)]


def _patients(
    evaluations: Sequence[Evaluation], metric: str, label: int | None, cases: Collection[str]
) -> dict[str, float]:
    """Return each patient's mean over some cases and over seeds; a patient must be in all of them."""
    seeds = [
        by_patient([score for score in evaluation.scores if score.case in cases], metric, label)
        for evaluation in evaluations
    ]
    shared = [patient for patient in seeds[0] if all(patient in seed for seed in seeds)]
    return {patient: float(np.mean([seed[patient] for seed in seeds])) for patient in shared}


def _key(evaluation: Evaluation) -> str:
    run = evaluation.run
    settings = decisive(run.settings, "seed", *ROUNDING)
    trained_on = {name: run.data.get(name) for name in _OF_STORE}
    return json.dumps([settings, trained_on, evaluation.dataset], sort_keys=True, default=str)


def _precision(run: Run | PredictionFolder) -> str | None:
    """Return what a run computed in, where that is recorded: other loops may not do so."""
    hardware = run.settings.get("hardware")
    return hardware.get("precision") if isinstance(hardware, dict) else None


def _names(runs: Sequence[Run | PredictionFolder]) -> list[str]:
    """Return a name for each configuration: the method, and whatever differs; with the folder if need be."""
    facts = [{**run.summary, "dataset": run.data.get("dataset"), "precision": _precision(run)} for run in runs]
    keys = ("preset", "model", "subset", "dataset", "precision")
    differing = [key for key in keys if len({str(fact.get(key)) for fact in facts}) > 1]
    words = [[str(fact[key]) for key in ("method", *differing) if fact.get(key)] for fact in facts]
    names = [", ".join(parts) or "run" for parts in words]
    for folders in ([run.folder.name for run in runs], [str(run.folder) for run in runs]):
        if len(set(names)) < len(names):
            names = [f"{name} [{folder}]" for name, folder in zip(names, folders, strict=True)]
    return names
