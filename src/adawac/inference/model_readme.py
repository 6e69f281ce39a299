"""What people read about a shared network: its use, limits, data, scores and settings, taken from the run.

Counts, settings and means alone: no name of a patient, a case, a file or a folder.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

import adawac
from adawac.errors import ConfigError
from adawac.evaluation.statistics import Summary, summarise
from adawac.inference.trained_network import Trained, why_to_ask
from adawac.lazy import library
from adawac.runs import Run

PAPER = (
    "Yijun Dong, Yuege Xie and Rachel Ward: Adaptively Weighted Data Augmentation Consistency Regularization for "
    "Robust Optimization under Concept Shift. ICML 2023."
)
INTENDED_USE = (
    "Research on segmentation. It is not a medical device, nothing about it was certified, and no diagnosis or "
    "treatment may rest on it."
)
_METRICS = {"dice": "DSC", "hd95": "HD95"}
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedPart:
    """Scores of a network on one part of its data set.

    Attributes:
        part: `test`, `val` or `train`.
        convention: What empty masks score.
        unit: Of distances.
        summaries: For each metric, a summary of each class and the mean over classes.
    """

    part: str
    convention: str
    unit: str
    summaries: dict[str, list[Summary]]

    @property
    def counts(self) -> str:
        """How many cases of how many patients there are."""
        mean = next(iter(self.summaries.values()))[-1]
        return f"{mean.num_cases} cases of {mean.num_patients} patients"


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedNetwork:
    """A network to share, and the run that it comes from, if that is at hand.

    Attributes:
        trained: The network.
        run: The run; None where a model folder is shared, whose training nobody knows.
        license: What others may do with the weights, such as `apache-2.0`.
        evaluated: Scores of these very weights; those of other checkpoints or epochs are left out.
    """

    trained: Trained
    run: Run | None
    license: str
    evaluated: tuple[EvaluatedPart, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not _LICENSE.fullmatch(self.license):
            raise ConfigError(
                f"Expected a licence by its identifier, such as apache-2.0, cc-by-4.0 or other, but got "
                f"{self.license!r}."
            )
        object.__setattr__(self, "evaluated", tuple(self._evaluated()))

    def _evaluated(self) -> Iterator[EvaluatedPart]:
        run = self.run
        if run is None:
            return
        for name in run.evaluations:
            scores = [score for score in run.scores(name) if score.checkpoint == self.trained.checkpoint]
            metrics = [metric for metric in _METRICS if any(score.metric == metric for score in scores)]
            if metrics and f"scores/{name}.csv" not in run.outdated:
                yield EvaluatedPart(
                    part=scores[0].split,
                    convention=scores[0].convention,
                    unit=next((score.unit for score in scores if score.unit), ""),
                    summaries={metric: summarise(scores, metric) for metric in metrics},
                )

    @property
    def title(self) -> str:
        """What it segments, and in what."""
        task = self.trained.task
        images = "pictures" if task.of_pictures else f"{task.modality or ''} scans".strip()
        return f"{_listed(task.class_names[1:])} in {images}"

    @property
    def method(self) -> str:
        """What it was trained by, in a few words."""
        config = self.run.config if self.run else None
        return f"{config.method.name}, preset {config.method.preset}" if config else "adawac"


def write_readme(shared: SharedNetwork, usage: str, limits: Iterable[str] = ()) -> str:
    """Return the text in Markdown.

    Args:
        shared: The network.
        usage: How it is run, in Markdown.
        limits: Further sentences about what it cannot do.
    """
    sections = {
        "How to use it": usage,
        "Intended use": INTENDED_USE,
        "Limits": _bullets([*_limits(shared), *limits]),
        "Classes": _class_table(shared.trained),
        "Training data": _bullets(_data(shared)),
        "Scores": _scores(shared),
        "Training": _bullets(_training(shared)),
        "Preprocessing": _bullets(_preprocessing(shared.trained)),
        "Licence": f"`{shared.license}`, by the choice of those who share it. The data's own licence may say more.",
        "Reference": PAPER,
    }
    head = (
        f"# {shared.title}\n\n{shared.trained.model.name}, {shared.trained.num_classes} classes with the background, "
        f"trained by adawac {adawac.__version__} ({shared.method}).\n"
    )
    return "\n".join([head, *(f"## {name}\n\n{text}\n" for name, text in sections.items())])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _limits(shared: SharedNetwork) -> Iterator[str]:
    task = shared.trained.task
    kind = "Pictures" if task.of_pictures else "Scans"
    yield f"{kind} of other devices, places or populations than the training data's may be segmented badly."
    yield f"It knows no other classes than {_listed(task.class_names)}, and may find these where they cannot be."
    if not task.of_pictures:
        yield "Slices are segmented one by one: it does not see the slices above and below."
    if not any(evaluated.part == "test" for evaluated in shared.evaluated):
        yield "No scores on test cases are at hand."


def _class_table(trained: Trained) -> str:
    values = [class_values[0] for class_values in trained.label_values]
    rows = [(k, value, name) for k, (value, name) in enumerate(zip(values, trained.class_names, strict=True))]
    return _table(("index", "value in label maps", "class"), rows)


def _data(shared: SharedNetwork) -> Iterator[str]:
    task, run = shared.trained.task, shared.run
    yield f"Data set: {task.dataset}; channels: {', '.join(task.channels)}; modality: {task.modality or 'not noted'}."
    samples = run.samples if run else None
    if run is None or samples is None:
        yield "How much there was is not noted."
        return
    patients, cases = (len(np.unique(column)) for column in (samples.patient, samples.case))
    sparse = int(samples.label_sparse.sum())
    yield (
        f"Trained on {len(samples)} {samples.unit[0] if len(samples) else 'slice'}s of {cases} cases of {patients} "
        f"patients; {sparse} of them ({100 * sparse / max(1, len(samples)):.0f} %) show no class but the background."
    )
    if held_out := run.data.get("validation"):
        yield f"Cases held out for validation: {len(held_out)}."
    for evaluated in shared.evaluated:
        yield f"Scored on {evaluated.counts} ({evaluated.part})."


def _scores(shared: SharedNetwork) -> str:
    if not shared.evaluated:
        return "It was not evaluated, or not with these weights."
    return "\n\n".join(map(_score_table, shared.evaluated))


def _score_table(evaluated: EvaluatedPart) -> str:
    rows = [
        (summaries[0].class_name, *(_spread(summary) for summary in summaries))
        for summaries in zip(*evaluated.summaries.values(), strict=True)
    ]
    head = [f"{_METRICS[metric]}, {metric_unit(metric, evaluated.unit)}" for metric in evaluated.summaries]
    return (
        f"Mean ± standard deviation over {evaluated.counts} ({evaluated.part}); empty masks score by the convention "
        f"`{evaluated.convention}`.\n\n" + _table(("class", *head), rows)
    )


def metric_unit(metric: str, distance: str) -> str:
    """Return the unit that a metric is shown in: shares as percentages."""
    return "%" if metric == "dice" else distance or "voxel"


def shown_value(metric: str, value: float) -> float:
    """Return a metric's value in that unit."""
    return 100 * value if metric == "dice" else value


def _spread(summary: Summary) -> str:
    values = [shown_value(summary.metric, value) for value in (summary.mean, summary.std)]
    mean, deviation = ("–" if math.isnan(value) else f"{value:.2f}" for value in values)
    return f"{mean} ± {deviation}"


def _training(shared: SharedNetwork) -> Iterator[str]:
    trained, run = shared.trained, shared.run
    yield f"Network: {trained.model.name}; input {trained.image_size[0]} × {trained.image_size[1]} pixels."
    config = run.config if run else None
    if config is None or run is None:
        yield "The training's settings are not noted."
        return
    epochs = f"{run.epoch} of {config.epochs}" if run.epoch != config.epochs else str(run.epoch)
    yield f"Method: {config.method.name}, preset {config.method.preset}{_options(config.method.options)}."
    yield f"Weights it began with: {_origin(config.model.pretrained)}."
    yield f"{epochs} epochs, batches of {config.data.batch_size}, seed {config.seed}; checkpoint {trained.checkpoint}."
    yield f"{config.optim.optimizer.upper()}, learning rate {config.optim.lr:g} ({config.optim.schedule})."


def _options(options: dict[str, Any]) -> str:
    listed = ", ".join(f"{name} {value}" for name, value in options.items())
    return f" ({listed})" if listed else ""


def _origin(pretrained: str | None) -> str:
    """Return where weights came from; of a file, not even its name."""
    if pretrained is None:
        return "random ones"
    plain = len(PurePath(pretrained).parts) == 1 and not PurePath(pretrained).suffix
    return pretrained if plain else "those of a file"


def _preprocessing(trained: Trained) -> Iterator[str]:
    options = trained.preprocessing
    if trained.orientation:
        yield f"Voxel axes are turned to {trained.orientation}."
    if options.window:
        yield f"Intensities are clipped to {options.window[0]:g} … {options.window[1]:g}."
    if options.clip_quantile:
        yield f"Intensities are clipped at the {options.clip_quantile:g} quantile of the scan."
    yield f"Normalisation: {options.normalisation}."
    if options.spacing:
        steps = " × ".join(f"{step:g}" if step else "the file's" for step in options.spacing)
        yield f"Voxels are resampled to {steps} mm with cubic splines, the label map back by nearest neighbour."
    if options.tile:
        yield f"Pictures are cut into tiles of {options.tile} pixels, which overlap by {options.overlap}."
    elif not trained.task.of_pictures:
        yield f"Scans are cut into slices along axis {options.axis}."
    yield f"Slices are resized to the network's input ({trained.resize}), label maps back by nearest neighbour."


# -- for the Hugging Face Hub -----------------------------------------------------------------------------------------


def write_hub_readme(shared: SharedNetwork) -> str:
    """Return the text with the Hub's front matter; the network must be one that adawac builds without others' code."""
    if reason := why_to_ask(shared.trained.model):
        raise ConfigError(
            f"Expected a network that adawac knows, with plain options, as the Hub's folder holds no code, but "
            f"{shared.trained.source} has {reason}. Export ONNX or a MONAI bundle instead."
        )
    return f"---\n{_front_matter(shared)}\n---\n\n{write_readme(shared, _usage(shared))}"


def _front_matter(shared: SharedNetwork) -> str:
    hub: Any = library("huggingface_hub", "adawac[hub]")
    results = list(_results(hub, shared))
    card = hub.ModelCardData(
        license=shared.license.lower(),
        library_name="adawac",
        pipeline_tag="image-segmentation",
        tags=list(_tags(shared)),
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=shared.title,
        eval_results=results or None,
    )
    return str(card.to_yaml()).strip()


def _tags(shared: SharedNetwork) -> Iterator[str]:
    task = shared.trained.task
    yield from ("image-segmentation", "adawac")
    yield from ("pictures",) if task.of_pictures else ("medical", "medical-imaging")
    if task.modality:
        yield task.modality.lower()
    if shared.run and shared.run.config:
        yield f"method-{shared.run.config.method.name}"


def _results(hub: Any, shared: SharedNetwork) -> Iterator[Any]:
    """Yield the mean over classes and that of each class, for each metric and part."""
    dataset = shared.trained.dataset
    for evaluated in shared.evaluated:
        for metric, summaries in evaluated.summaries.items():
            unit = metric_unit(metric, evaluated.unit)
            for summary in (summary for summary in summaries if not math.isnan(summary.mean)):
                yield hub.EvalResult(
                    task_type="image-segmentation",
                    dataset_type=re.sub(r"[^\w.-]+", "-", dataset) or "dataset",
                    dataset_name=dataset,
                    dataset_split=evaluated.part,
                    metric_type=metric,
                    metric_name=f"{_METRICS[metric]}, {summary.class_name}, {unit} ({evaluated.convention})",
                    metric_value=round(shown_value(metric, summary.mean), 4),
                )


def _usage(shared: SharedNetwork) -> str:
    images = "PICTURES" if shared.trained.task.of_pictures else "SCANS"
    return f"""```sh
pip install 'adawac[hub]'
adawac predict hf://OWNER/NAME {images} --out labels
```

with the name of this repository. Pin a version by its commit: `hf://OWNER/NAME@COMMIT`. The folder holds no code and no
pickled object: `weights.safetensors` are numbers, and `model.json` says how the network is built and how images are
prepared."""
