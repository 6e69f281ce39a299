"""The whole tool on built-in data: a phantom, three methods on a label-sparse subset, their scores, a report."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adawac.config import TrainConfig, override
from adawac.data.phantom.scanner import phantom_source
from adawac.data.phantom.textures import texture_source
from adawac.data.preparation import prepare
from adawac.data.sources import Source
from adawac.errors import ConfigError
from adawac.runs import Run

if TYPE_CHECKING:
    from adawac.train import TrainingProgress

#: What is trained, in this order: one view, two views, two views weighed against their consistency.
DEMO_METHODS = ("baseline", "pair", "adawac")


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the demonstration draws and trains, chosen by the baseline alone; but for `options`, which it does not use.

    Attributes:
        phantom: Options of `source`; its size is also that of the network's input.
        source: Draws the data.
        drawn: What it draws, in words.
        metric: Whose means are shown: Dice of all cases, or of the slices with foreground where most cases are empty.
        subset: Part of the training samples.
        model: The network.
        model_options: Further options of the network.
        epochs: Passes over the training samples.
        views: Options of the random views.
        options: Options that replace the preset's.
        forward: How a method takes its second view, where not in one pass with the first.
    """

    phantom: Mapping[str, Any]
    source: Callable[..., Source] = phantom_source
    drawn: str = "24 abdomens"
    metric: str = "dice"
    subset: str = "half-vol"
    model: str = "smp:Unet/resnet18"
    model_options: Mapping[str, Any]
    epochs: int = 40
    views: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)


DEMO = DemoSettings(
    phantom={"num_patients": 24, "size": (40, 56), "slices": (24, 30), "sparse": 0.6, "shift": 0.5},
    model_options={"encoder_depth": 3, "decoder_channels": [32, 24, 16]},
    views={"turn": 0.0, "max_angle": 15, "scale": 0.1, "brightness": 0.05, "contrast": 0.15, "gamma": 0.15},
    options={"aligned": True, "lambda_ac": 0.3},
    forward={"adawac": "encoder"},
)


PICTURES_DEMO = DemoSettings(
    phantom={"num_pictures": 512, "size": (64, 64), "empty": 0.9, "shift": 0.25},
    source=texture_source,
    drawn="512 pictures of surfaces",
    metric="dense_dice",
    subset="full",
    model_options={"encoder_depth": 3, "decoder_channels": [32, 24, 16]},
    views={"scale": 0.1, "brightness": 0.1, "contrast": 0.2, "saturation": 0.2, "hue": 10},
    forward={"adawac": "encoder"},
)


def settings(store: Path, method: str, seed: int, demo: DemoSettings = DEMO) -> TrainConfig:
    """Return the configuration of one of the demonstration's runs; they differ in nothing but the method."""
    return override(
        TrainConfig(),
        {
            "data.store": store,
            "data.subset": demo.subset,
            "data.image_size": demo.phantom["size"],
            "data.batch_size": 8,
            "data.views": dict(demo.views),
            "model.name": demo.model,
            "model.options": dict(demo.model_options),
            "method.name": method,
            "method.preset": "robust",
            "method.options": dict(demo.options),
            "forward": demo.forward.get(method, "joint"),
            "optim.optimizer": "adamw",
            "optim.lr": 0.003,
            "optim.schedule": "cosine",
            "optim.warmup_epochs": 1 if demo.epochs > 1 else 0,
            "hardware.accelerator": "cpu",
            "checkpoint_every": 5,
            "epochs": demo.epochs,
            "seed": seed,
        },
    )


# Shares of the time: drawing, the trainings (pair has twice the work of baseline, AdaWAC one and a half times), and
# scores with the report.
_DRAWING, _TRAININGS, _SCORING = 0.05, {"baseline": 0.21, "pair": 0.36, "adawac": 0.31}, 0.07


def demonstrate(
    out: Path,
    *,
    seed: int = 1,
    demo: DemoSettings = DEMO,
    watch: "TrainingProgress | None" = None,
    note: Callable[[str, float, float], None],
) -> dict[str, Any]:
    """Prepare, train, evaluate and report into a folder; what is there already is not done again.

    Args:
        out: Where store, runs and report go.
        seed: Draws the network, the views and the order of the samples.
        demo: What is drawn and trained.
        watch: Watches the trainings (see `adawac.fit`).
        note: Is told what comes next, and how much of all is done before and after it, from 0 to 1.

    Returns:
        For every method its Dice (mean over classes and patients) and that of each class, what became of beta, in words
        and numbers, the run folders and the path of the report.
    """
    if demo.epochs < 1:
        raise ConfigError(f"Expected at least 1 epoch, but got {demo.epochs}. Raise --epochs.")
    from adawac.evaluation import by_patient, evaluate
    from adawac.report import write_report
    from adawac.report.verdict import WITH_FOREGROUND, describe_outcome
    from adawac.runs.layout import INFO, strict
    from adawac.train import fit

    folder = out / "store"
    note(f"Drawing {demo.drawn} into {folder}", 0, _DRAWING)
    store = prepare(demo.source(**demo.phantom), None, folder, progress=False)
    runs: dict[str, Run] = {}
    begun = _DRAWING
    for method in DEMO_METHODS:
        config = settings(store.path.absolute(), method, seed, demo)
        folder = out / f"{method}-seed{seed}-epochs{demo.epochs}"
        note(f"Training {method} into {folder}", begun, begun + _TRAININGS[method])
        done = Run(folder) if (folder / INFO).is_file() else None
        if done is None or done.status != "finished":
            done = fit(config, folder, resume=done is not None, watch=watch)
        runs[method], begun = done, begun + _TRAININGS[method]
    note("Scoring the test cases, and writing the report", 1 - _SCORING, 1)
    evaluations = dict(zip(runs, evaluate(list(runs.values()), progress=False), strict=True))
    report = write_report(list(runs.values()), out / "report.html", overwrite=True)
    dice = {name: _mean(by_patient(evaluation.scores, demo.metric)) for name, evaluation in evaluations.items()}
    cases = [WITH_FOREGROUND] if demo.metric == "dense_dice" else []
    samples = store.samples("train", demo.subset, seed)
    return {
        "seed": seed,
        "epochs": demo.epochs,
        "samples": len(samples),
        "label_sparse": int(samples.table.label_sparse.sum()),
        "dice": dice,
        "classes": {
            name: {
                organ: _mean(by_patient(evaluation.scores, demo.metric, label))
                for label, organ in enumerate(store.class_names[1:], start=1)
            }
            for name, evaluation in evaluations.items()
        },
        "beta_auc": runs["adawac"].metrics[-1]["beta_auc"],
        "detections": {
            name: strict(asdict(evaluation.detections[-1]))
            for name, evaluation in evaluations.items()
            if evaluation.has_empty_cases
        },
        "outcome": describe_outcome(runs, dice, *cases),
        "runs": {method: str(run.folder) for method, run in runs.items()},
        "report": str(report),
    }


def _mean(patients: Mapping[str, float]) -> float:
    return sum(patients.values()) / len(patients) if patients else math.nan
