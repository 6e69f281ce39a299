"""The whole tool on built-in data: a phantom, three methods on a label-sparse subset, their scores, a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adawac.config import TrainConfig, override
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.data.store import Store
from adawac.errors import ConfigError, MissingFileError
from adawac.runs import Run

#: What is trained, in this order: one view, two views, two views weighed against their consistency.
DEMO_METHODS = ("baseline", "pair", "adawac")
#: The paper's label-sparse subset: the first half of each case, where most slices carry no label.
SUBSET = "half-sparse"
# Small enough for two cores and five minutes.
_CASES, _SIZE = 16, 64


def settings(store: Path, method: str, seed: int, epochs: int) -> TrainConfig:
    """Return the configuration of one of the demonstration's runs; they differ in nothing but the method."""
    return override(
        TrainConfig(),
        {
            "data.store": store,
            "data.subset": SUBSET,
            "data.image_size": (_SIZE, _SIZE),
            "data.batch_size": 8,
            "model.name": "smp:Unet/resnet18",
            "model.options": {"encoder_depth": 3, "decoder_channels": [48, 32, 16]},
            "method.name": method,
            "method.preset": "official",
            "method.options": {"eta_beta": 1.0, "lambda_ac": 1.0},
            "optim.optimizer": "adamw",
            "optim.lr": 0.003,
            "optim.schedule": "cosine",
            "optim.warmup_epochs": 1 if epochs > 1 else 0,
            "hardware.accelerator": "cpu",
            "epochs": epochs,
            "seed": seed,
        },
    )


def demonstrate(
    out: Path, *, seed: int = 1, epochs: int = 18, watch: Callable[[], Any] | None = None, note: Callable[[str], None]
) -> dict[str, Any]:
    """Prepare, train, evaluate and report into a folder; what is there already is not done again.

    Args:
        out: Where store, runs and report go.
        seed: Draws the network, the views and the order of the samples.
        epochs: Passes over the training samples.
        watch: Makes what watches each training (see `adawac.fit`).
        note: Is told what comes next.

    Returns:
        For every method its Dice (mean over classes and patients) and seconds, and the path of the report.
    """
    from adawac.evaluation import by_patient, evaluate
    from adawac.report import write_report
    from adawac.train import fit

    if epochs < 1:
        raise ConfigError(f"Expected at least 1 epoch, but got {epochs}. Raise --epochs.")
    store = out / "store"
    note(f"Drawing {_CASES} abdomens into {store}")
    _prepare(store)
    runs: dict[str, Run] = {}
    for method in DEMO_METHODS:
        folder = out / f"{method}-seed{seed}-epochs{epochs}"
        note(f"Training {method} into {folder}")
        config = settings(store.absolute(), method, seed, epochs)
        done = _run(folder)
        if done is None or done.status != "finished":
            done = fit(config, folder, resume=done is not None, watch=watch() if watch else None)
        runs[method] = done
    note("Scoring the test cases")
    evaluations = evaluate(list(runs.values()), progress=False)
    report = write_report(list(runs.values()), out / "report.html")
    dice = {method: by_patient(run.scores, "dice") for method, run in zip(runs, evaluations, strict=True)}
    return {
        "seed": seed,
        "epochs": epochs,
        "subset": SUBSET,
        "samples": len(Store(store).samples("train", SUBSET, seed)),
        "dice": {method: sum(patients.values()) / len(patients) for method, patients in dice.items()},
        "beta_auc": runs["adawac"].metrics[-1]["beta_auc"],
        "runs": {method: str(run.folder) for method, run in runs.items()},
        "report": str(report),
    }


def _prepare(store: Path) -> None:
    try:
        Store(store)
    except MissingFileError:
        prepare(phantom_source(_CASES, 0, size=_SIZE), None, store, progress=False)


def _run(folder: Path) -> Run | None:
    try:
        return Run(folder)
    except MissingFileError:
        return None
