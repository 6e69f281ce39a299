"""Export of a trained network: a model folder or an ONNX file, by the name of the target."""

import json
from dataclasses import dataclass
from pathlib import Path

from adawac.errors import ConfigError
from adawac.files import explained, write_text
from adawac.inference.model_card import CARD, WEIGHTS, card_of, seal
from adawac.inference.onnx import export_onnx
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained, why_to_ask
from adawac.runs import Run, save_checkpoint


def save_model(trained: Trained, folder: Path) -> None:
    """Write a network as a model folder.

    The weights come first: stopped in between, the folder has no description, or one that names other weights, and is
    refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS
    save_checkpoint(weights, trained.network.state_dict(), {})
    card = seal(card_of(trained), weights)
    write_text(folder / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        path: The ONNX file, or the model folder.
        dynamic: ONNX: which sides of the input are free: `batch`, `height`, `width`.
        reason: ONNX: why others are not; empty if all are free.
        difference: ONNX: largest difference between its logits and torch's, relative to the largest logit, if that is
            above 1.
        trust_code: Folder: whether loading it needs `trust_code`, as its network is not one that adawac knows.
    """

    path: Path
    dynamic: tuple[str, ...] = ()
    reason: str = ""
    difference: float = 0.0
    trust_code: bool = False


def export_model(
    run: Path | str | Run,
    out: Path | str,
    *,
    checkpoint: str | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
) -> Exported:
    """Save a trained network for use elsewhere.

    Args:
        run: The run folder, one of its checkpoints, or a model folder.
        out: A file `….onnx`, or a folder, which `adawac predict` takes on another machine.
        checkpoint: `last`, `best` or another checkpoint; by default what the run's configuration selects.
        overwrite: Replace a file or a model folder that exists.
        trust_code: Also load a model folder that names code to import (see `adawac.inference.load_trained`).
    """
    path = Path(out)
    _check_target(path, overwrite)
    trained = load_trained(run, checkpoint, trust_code=trust_code)
    with explained(ConfigError, str(path), "Make room, change the permissions, or give another --out."):
        if path.suffix.lower() != ".onnx":
            save_model(trained, path)
            return Exported(path=path, trust_code=why_to_ask(trained.model) is not None)
        dynamic, reason, difference = export_onnx(trained, path)
        return Exported(path=path, dynamic=dynamic, reason=reason, difference=difference)


def _check_target(path: Path, overwrite: bool) -> None:
    """Refuse what would replace something, and what is neither an ONNX file nor a model folder."""
    if path.suffix.lower() == ".onnx":
        exists = path.exists()
        fine = path.is_file()
    else:
        exists = path.exists() and (not path.is_dir() or any(path.iterdir()))
        fine = (path / CARD).is_file()
    if exists and not fine:
        raise ConfigError(f"Expected a new folder or an .onnx file, but {path} is something else. Give another --out.")
    if exists and not overwrite:
        raise ConfigError(f"Expected a new file or folder, but {path} exists. Give --overwrite, or another --out.")
