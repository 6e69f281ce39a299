"""Weights from a file: tensors and nothing else. Nothing in a file is ever executed."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adawac.errors import AdawacError, MissingFileError

__all__ = ["WeightsError", "read_weights"]

# Where training codes keep the state dict within a checkpoint.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "network_weights", "net", "network")


class WeightsError(AdawacError, ValueError):
    """A file of weights that cannot be used: damaged, unsafe, or for another network."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a `.npz`, a `.safetensors` or a checkpoint that `torch.save` wrote."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(
            f"Expected a file of weights (.pth, .safetensors or .npz), imagenet or imagenet-offline, but there is no "
            f"file {str(path)!r}. Check the path; if it was moved, a run goes on with adawac train --out RUN --resume "
            "--pretrained FILE."
        )
    read = _READERS.get(path.suffix.lower(), _read_torch)
    try:
        content = read(path)
    except Exception as error:  # a damaged file may fail in any way
        raise WeightsError(
            f"Expected weights in {str(path)!r}, but the file is damaged, cut off, or holds objects other than "
            f"tensors, which are not loaded because they could run code ({_first_line(error)}). Get it again, or save "
            "its tensors alone: torch.save(model.state_dict(), FILE)."
        ) from error
    tensors = _tensors(content)
    if not tensors:
        raise WeightsError(f"Expected tensors by name in {str(path)!r}, but found none. Save a model's state_dict().")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise WeightsError(
                f"Expected finite numbers in {str(path)!r}, but {name!r} has NaN or infinity: the training that "
                "wrote it diverged, or the file is damaged. Take an earlier checkpoint."
            )
    return tensors


def _read_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path, device="cpu")


def _read_npz(path: Path) -> Any:
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise ValueError("not an npz archive")
    with np.load(path, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


_READERS: Mapping[str, Callable[[Path], Any]] = {".npz": _read_npz, ".safetensors": _read_safetensors}


def _tensors(content: Any) -> dict[str, Tensor]:
    """Return the state dict within a checkpoint."""
    if not isinstance(content, Mapping):
        return {}
    for wrapper in _WRAPPERS:
        if isinstance(content.get(wrapper), Mapping):
            return _tensors(content[wrapper])
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
