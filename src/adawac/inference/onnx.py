"""ONNX through torch's dynamo exporter, checked against torch before the file appears."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import adawac
from adawac.errors import MissingDependencyError, RunError
from adawac.files import beside
from adawac.inference.model_card import card_of
from adawac.inference.predictor import Predictor
from adawac.inference.trained_network import Trained
from adawac.lazy import library, quietly

#: The largest difference to torch that is accepted, relative to the largest logit where that is above 1.
TOLERANCE = 1e-4

_SIDES = {0: "batch", 2: "height", 3: "width"}


def export_onnx(trained: Trained, path: Path) -> tuple[tuple[str, ...], str, float]:
    """Write a network as ONNX: `image` (B, C, H, W), prepared as its metadata says, to `logits` (B, K, H, W).

    Height and width stay free where the network allows for that; else its own size is fixed, and only the number of
    slices is free.

    Returns:
        The free sides, why others are fixed (or ""), and the largest relative difference to torch.

    Raises:
        MissingDependencyError: With a torch before 2.7, or without a library of `adawac[export]`.
    """
    if torch.__version__ < "2.7":  # 2.6 ignores the names of free sides; without names `interpolate` fixes the batch
        raise MissingDependencyError(
            f"Expected torch 2.7 or newer to write {path}, but got {torch.__version__}, whose ONNX files take batches "
            "of one size only. Run: pip install 'torch>=2.7' 'torchvision>=0.22', or export a model folder instead: "
            "`out='FOLDER'`."
        )
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name, "adawac[export]")
    predictor = Predictor.of([trained], device="cpu")
    with beside(path) as temporary:
        temporary.touch()  # a folder that cannot be written to fails here: that is not the network's fault
        try:
            return _attempt(predictor, trained, temporary, (0, 2, 3))
        except (RunError, _FailedError) as error:
            reason = str(error)
        try:
            sides, _, difference = _attempt(predictor, trained, temporary, (0,))
        except _FailedError as error:
            raise RunError(
                f"Expected a network that can be written as ONNX, but {trained.model.name!r} cannot ({error}). Export "
                "a model folder instead: `out='FOLDER'`."
            ) from error
    return sides, reason, difference


class _FailedError(Exception):
    """The exporter, or the runtime, could not do it."""


def _attempt(
    predictor: Predictor, trained: Trained, path: Path, free: Sequence[int]
) -> tuple[tuple[str, ...], str, float]:
    """Write the file with some sides free, and check it with sizes that these sides allow for."""
    height, width = trained.image_size
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, height, width), (3, height, width)]
    if 2 in free:
        shapes += [(2, 2 * height, width), (1, height, 2 * width)]
    images = [torch.rand(batch, len(trained.channels), *size, generator=generator) for batch, *size in shapes]
    example = images[1][:2]  # a batch of one would be taken for a constant
    try:
        with _silently():
            program: Any = torch.onnx.export(
                predictor.ensemble,
                (example,),
                dynamo=True,
                dynamic_shapes=({side: _SIDES[side] for side in free},),
                input_names=["image"],
                output_names=["logits"],
                verbose=False,
            )
        program.model.metadata_props["adawac"] = json.dumps(card_of(trained))
        program.model.producer_name, program.model.producer_version = "adawac", adawac.__version__
        program.save(path, external_data=False)
        difference = max(_differences(predictor, path, images))
    except (OSError, RunError):  # a full disk is not the network's fault; NaN has its own message
        raise
    except Exception as error:  # torch's exporter and the runtime raise almost anything
        raise _FailedError(_first_cause(error)) from error
    if not difference <= TOLERANCE:
        raise RunError(
            f"Expected ONNX to give torch's logits within {TOLERANCE:g}, but they differ by {difference:.2g}. Export a "
            "model folder instead: `out='FOLDER'`."
        )
    return tuple(_SIDES[side] for side in free), "", difference


def _differences(predictor: Predictor, path: Path, images: Sequence[Tensor]) -> Iterator[float]:
    runtime: Any = library("onnxruntime", "adawac[export]")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # its warnings are about what it optimises
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for image in images:
        wanted = predictor.scores(image).numpy()
        (got,) = session.run(None, {"image": image.numpy()})
        if got.shape != wanted.shape:
            raise ValueError(f"logits of shape {got.shape} instead of {wanted.shape}")
        yield float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def _first_cause(error: BaseException) -> str:
    """Return what the innermost error says first: the outer ones only say where the exporter was."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[: 2 if lines and lines[0].endswith(":") else 1]
    return ": ".join([type(error).__name__, *(line.rstrip(":") for line in shown)])


@contextmanager
def _silently() -> Iterator[None]:
    """Keep torch's remarks about its exporter to itself; what matters is checked afterwards."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quietly():
            yield
    finally:
        logger.setLevel(level)
