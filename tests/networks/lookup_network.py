"""Networks and data whose predictions a test decides: the image says which class the network finds."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adawac.config import DataConfig, HardwareConfig, MethodConfig, ModelConfig, TrainConfig
from adawac.data.cases import Case, CaseRef
from adawac.data.preparation import prepare
from adawac.data.preprocessing import READY, Preprocessing
from adawac.data.sources import Source
from adawac.data.splits import resolve_split
from adawac.data.store import Store
from adawac.runs import Run, RunWriter


class Lookup(nn.Module):
    """Finds class k where the image is about k; `bias` favours or forbids classes."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.encoder = nn.Identity()
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x):
        classes = torch.arange(len(self.bias), device=x.device).view(1, -1, 1, 1)
        return self.bias.view(1, -1, 1, 1) - (self.encoder(x) - classes) ** 2


class Strongest(nn.Module):
    """Finds class k where channel k is the strongest; `tilt` favours the last class towards the right of its input."""

    def __init__(self, num_classes: int, tilt: float):
        super().__init__()
        self.encoder = nn.Identity()
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.tilt = tilt

    def forward(self, x):
        logits = 20 * self.encoder(x)[:, : len(self.bias)] + self.bias.view(1, -1, 1, 1)
        ramp = torch.linspace(-self.tilt, self.tilt, x.shape[-1], device=x.device)
        return torch.cat([logits[:, :-1], logits[:, -1:] + ramp], 1)


def strongest(num_classes, tilt=0.0):
    """By the name `tests.networks.lookup_network:strongest`."""
    return Strongest(num_classes, tilt), "encoder"


def lookup(num_classes):
    """By the name `tests.networks.lookup_network:lookup`."""
    return Lookup(num_classes), "encoder"


def affine_to(axes, spacing):
    """The affine of voxel axes that point there, such as SPL."""
    affine = np.zeros((4, 4))
    affine[3, 3] = 1.0
    for axis, (code, size) in enumerate(zip(axes, spacing, strict=True)):
        row = next(row for row, pair in enumerate(("LR", "PA", "IS")) if code in pair)
        affine[row, axis] = size if code in "RAS" else -size
    return affine


@dataclass(frozen=True, kw_only=True)
class DrawnCase:
    """A case as a test draws it: (slices, H, W) each."""

    prediction: np.ndarray
    label: np.ndarray | None
    patient: str
    split: str = "test"
    group: str | None = None
    spacing: tuple[float, float, float] | None = (2.0, 1.0, 1.0)
    axes: str = "SPL"  # where its voxel axes point


@dataclass(frozen=True, kw_only=True)
class Drawn(Source):
    """Cases from memory."""

    dataset: str = "drawn"
    classes: dict = field(default_factory=lambda: {"background": (0,), "organ": (1,), "lesion": (2,)})
    preprocessing: Preprocessing = READY
    drawn: dict = field(default_factory=dict)

    def cases(self):
        return [
            CaseRef(dataset=self.dataset, patient=one.patient, id=name, group=one.group, split=one.split)
            for name, one in self.drawn.items()
        ]

    def load(self, ref):
        one = self.drawn[ref.id]
        return Case(
            dataset=self.dataset,
            patient=one.patient,
            id=ref.id,
            group=one.group,
            image=one.prediction[None].astype(np.float32),
            label=one.label,
            spacing=one.spacing or (1.0, 1.0, 1.0),
            affine=None if one.spacing is None else affine_to(one.axes, one.spacing),
            class_names=tuple(self.classes),
        )

    def options(self):
        return {}


def make_store(path: Path, drawn: dict, classes=("organ", "lesion"), dataset="drawn", **options) -> Store:
    """Prepare drawn cases."""
    named = {"background": (0,)} | {name: (value,) for value, name in enumerate(classes, start=1)}
    return prepare(Drawn(dataset=dataset, drawn=drawn, classes=named), None, path, workers=1, progress=False, **options)


def make_run(
    folder: Path,
    store: Store,
    *,
    seed=1,
    method="adawac",
    size=(8, 8),
    bias=None,
    checkpoints=("last",),
    network="lookup",
    network_options=None,
    **data,
) -> Run:
    """Write a run whose network is a `Lookup`, as training would have left it."""
    config = TrainConfig(
        epochs=1,
        seed=seed,
        data=DataConfig(store=store.path, image_size=size, **data),
        model=ModelConfig(name=f"tests.networks.lookup_network:{network}", options=network_options or {}),
        method=MethodConfig(name=method),
        hardware=HardwareConfig(accelerator="cpu"),
    )
    samples = store.samples("train", table=resolve_split(store.table, config.data.split, seed))
    weights = torch.zeros(store.num_classes) if bias is None else torch.tensor(bias, dtype=torch.float32)
    with RunWriter(folder, config, epochs=1, summary=config.summary) as run:
        run.write_data(
            {
                "dataset": store.dataset,
                "class_names": list(store.class_names),
                "channels": list(store.channels),
                "label_values": store.info["label_values"],
                "preprocessing": store.preprocessing.to_dict(),
                "unit": "slice",
            }
        )
        rows = run.write_samples(samples.table)
        beta = np.linspace(0.1, 0.9, len(rows)) if method == "adawac" else np.full(len(rows), np.nan)
        run.log_history(1, rows, ell_ce=np.linspace(1, 2, len(rows)), beta=beta)
        for name in checkpoints:
            run.save_checkpoint(name, {"network.bias": weights}, {"epoch": 1})
    return Run(folder)
