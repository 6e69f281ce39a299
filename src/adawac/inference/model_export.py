"""Export of a trained network: a model folder, an ONNX file, a MONAI bundle, or a folder for the Hugging Face Hub."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from adawac.errors import ConfigError, RunError
from adawac.files import explained, write_text
from adawac.inference.confidence import fitted_temperature, mean_temperature
from adawac.inference.model_card import CARD, WEIGHTS, card_of, seal
from adawac.inference.model_readme import SharedNetwork, write_hub_readme
from adawac.inference.monai_bundle import METADATA, save_bundle
from adawac.inference.onnx import export_onnx
from adawac.inference.trained import ENSEMBLE, load_trained
from adawac.inference.trained_network import Trained, why_to_ask
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
