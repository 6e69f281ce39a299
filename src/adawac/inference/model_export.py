"""Export of a trained network: a model folder, an ONNX file, a MONAI bundle, or a folder for the Hugging Face Hub."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

import adawac
from adawac.errors import ConfigError, MissingDependencyError, RunError
from adawac.files import beside, explained, write_text
from adawac.inference.confidence import fitted_temperature, mean_temperature
from adawac.inference.model_readme import SharedNetwork, write_hub_readme
from adawac.inference.monai_bundle import METADATA, save_bundle
from adawac.inference.predictor import Predictor
from adawac.inference.trained import ENSEMBLE, load_trained
from adawac.inference.trained_network import CARD, WEIGHTS, Trained, card_of, seal, why_to_ask
from adawac.lazy import library, quietly
from adawac.runs import Run, save_checkpoint
from adawac.runs.layout import INFO

ExportFormat = Literal["onnx", "folder", "monai-bundle", "hub"]
README = "README.md"
_SHARED = ("hub", "monai-bundle")  # what is made for others to read


def save_model(trained: Trained, folder: Path) -> None:
    """Write a network as a model folder.

    The weights come first: stopped in between, the folder has no description, or one that names other weights, and is
    refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS
    save_checkpoint(weights, trained.network.state_dict(), {})
    card = seal(card_of(_with_temperature(trained)), weights)
    write_text(folder / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def _with_temperature(trained: Trained) -> Trained:
    """Return a network that carries the temperature of its run's calibration, if it has one."""
    fitted = fitted_temperature(trained)
    return replace(trained, temperature=fitted.value, temperature_tta=fitted.tta) if fitted else trained


def save_ensemble(members: Mapping[str, Run], folder: Path) -> None:
    """Write the results of runs as model folders of these names, and the file that makes them an ensemble.

    If all of them are calibrated, that file has the geometric mean of their temperatures. The ensemble's own
    cannot be fitted: every case was in the training set of some member.

    An existing ensemble is replaced. ensemble.json is written last, so an interrupted export is not taken for one.
    """
    (folder / ENSEMBLE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    networks = {name: load_trained(run) for name, run in members.items()}
    for name, trained in networks.items():
        save_model(trained, folder / name)
    about: dict[str, Any] = {"format_version": 1, "members": list(members)}
    if fitted := mean_temperature(list(networks.values())):
        about |= {"temperature": fitted.value, "temperature_tta": fitted.tta}
    write_text(folder / ENSEMBLE, json.dumps(about, indent=2) + "\n")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        path: The ONNX file, or the folder.
        format: What it is.
        dynamic: ONNX: which sides of the input are free: `batch`, `height`, `width`.
        reason: ONNX: why others are not; empty if all are free.
        difference: ONNX: largest difference between its logits and torch's, relative to the largest logit, if that is
            above 1.
        trust_code: Folder: whether loading it needs `trust_code`, as its network is not one that adawac knows.
    """

    path: Path
    format: ExportFormat = "folder"
    dynamic: tuple[str, ...] = ()
    reason: str = ""
    difference: float = 0.0
    trust_code: bool = False


def export_model(
    run: Path | str | Run,
    out: Path | str,
    *,
    format: ExportFormat | None = None,
    license: str | None = None,
    checkpoint: str | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
) -> Exported:
    """Save a trained network for use elsewhere.

    Args:
        run: The run folder, one of its checkpoints, or a model folder.
        out: A file `….onnx`, or a folder, which `adawac predict` takes on another machine.
        format: By default what the name of `out` says: `onnx` or `folder`. `monai-bundle` is a folder that
            `python -m monai.bundle run` and MONAI Label take without adawac; `hub` a model folder with a model card for
            the Hugging Face Hub. Both need a `license`.
        license: What others may do with the weights, by its identifier: `apache-2.0`, `cc-by-4.0`, …
        checkpoint: `last`, `best` or another checkpoint; by default what the run's configuration selects.
        overwrite: Replace a file or a folder of the same format that exists.
        trust_code: Also load a model folder that names code to import (see `adawac.load_trained`).

    Returns:
        What was written, and for ONNX which sides of the input are free.

    Examples:
        >>> import adawac
        >>> exported = adawac.export_model("runs/adawac", "model")
        >>> sorted(path.name for path in exported.path.iterdir())
        ['model.json', 'weights.safetensors']
    """
    path = Path(out)
    format = _checked_format(format, path)
    _check_free(path, format, overwrite)
    _check_license(format, license)
    trained = load_trained(run, checkpoint, trust_code=trust_code)
    shared = None if license is None else _share(trained, checkpoint, license)
    with explained(ConfigError, str(path), "Make room, change the permissions, or give another `out`."):
        if format == "onnx":
            dynamic, reason, difference = export_onnx(_with_temperature(trained), path)
            return Exported(path=path, format=format, dynamic=dynamic, reason=reason, difference=difference)
        if shared and format == "monai-bundle":
            save_bundle(shared, path)
            return Exported(path=path, format=format)
        readme = write_hub_readme(shared) if shared and format == "hub" else None
        save_model(trained, path)
        if readme is not None:
            write_text(path / README, readme)
        return Exported(path=path, format=format, trust_code=why_to_ask(trained.model) is not None)


def _checked_format(format: ExportFormat | None, path: Path) -> ExportFormat:
    """Return what to write, which the name of a file has to agree with."""
    by_name: ExportFormat = "onnx" if path.suffix.lower() == ".onnx" else "folder"
    format = format or by_name
    if format not in get_args(ExportFormat):
        raise ConfigError(f"Expected a format of {', '.join(get_args(ExportFormat))}, but got {format!r}.")
    if (format == "onnx") != (by_name == "onnx"):
        raise ConfigError(
            f"Expected {'a file ….onnx' if format == 'onnx' else 'a folder'} for the format {format}, but got {path}."
        )
    return format


def _check_license(format: ExportFormat, license: str | None) -> None:
    if license is None and format in _SHARED:
        raise ConfigError(
            "Expected what others may do with the weights, but no licence was chosen. Give one: "
            "`license='apache-2.0'`, `license='cc-by-4.0'`, …; with `license='other'`, say more in the README."
        )
    if license is not None and format not in _SHARED:
        raise ConfigError(f"Expected a licence for {' and '.join(_SHARED)} alone, but got one for {format}.")


def _check_free(path: Path, format: ExportFormat, overwrite: bool) -> None:
    """Refuse what would replace something: in any case what is no export of this format."""
    onnx = format == "onnx"
    if not path.exists() or (not onnx and path.is_dir() and not any(path.iterdir())):
        return
    mark = {"onnx": path, "monai-bundle": path / METADATA}.get(format, path / CARD)
    if not mark.is_file():
        raise ConfigError(f"Expected a new folder or an .onnx file, but {path} is something else. Give another `out`.")
    if not overwrite:
        raise ConfigError(f"Expected a new file or folder, but {path} exists. Give `overwrite=True`, or another `out`.")


def _share(trained: Trained, checkpoint: str | None, license: str) -> SharedNetwork:
    """Return a network that may be shared, with its run where that is at hand."""
    run = Run(trained.source) if (trained.source / INFO).is_file() else None
    if run and run.status != "finished" and checkpoint is None:
        raise RunError(
            f"Expected a finished run to share, but {run.folder} is {run.status}, at epoch {run.epoch}. Let it finish, "
            "or name the weights that are to be shared: `checkpoint='last'`."
        )
    if trained.preprocessing.unit != "slice":
        raise ConfigError(
            f"Expected a network for slices, but {trained.source} is one for a {trained.preprocessing.unit}, which "
            "`adawac predict` does not run. Share one for slices."
        )
    return SharedNetwork(trained=trained, run=run, license=license)


# -- ONNX through torch's dynamo exporter, checked against torch before the file appears -------------------------------

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
