"""Checkpoints: one safetensors file each, with JSON and a SHA-256 in its header; nothing in it can be executed."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from adawac.errors import MissingFileError, RunError
from adawac.files import beside

_KEY = "adawac"
_BLANK = "0" * 64  # stands in the header where the digest goes, while that is computed
_DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')
_MOST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: tensors by name, and everything else as plain data."""

    tensors: dict[str, Any]
    state: dict[str, Any]


def save_checkpoint(path: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a checkpoint in one step: a kill or a full disk leaves the last one as it was.

    Args:
        path: The file.
        tensors: Torch tensors on any device, or NumPy arrays.
        state: What JSON can hold. Keys become text.
    """
    header = json.dumps({"sha256": _BLANK, "state": dict(state)})
    with beside(path) as temporary:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        _write(temporary, tensors, {_KEY: header})
        temporary.chmod(mode)  # safetensors makes it private; a run folder follows the user's umask
        with temporary.open("r+b") as file:
            offset, _, digest = _digest(file)
            file.seek(offset)
            file.write(digest)


def load_checkpoint(path: Path, framework: Literal["numpy", "torch"] = "numpy", device: str = "cpu") -> Checkpoint:
    """Read a checkpoint after checking that not a bit of it has changed.

    Args:
        path: The file.
        framework: What the tensors are; NumPy knows no bfloat16.
        device: Where torch puts them.
    """
    from safetensors import SafetensorError, safe_open

    check_intact(path)
    try:
        options = {"framework": "pt", "device": device} if framework == "torch" else {"framework": "np"}
        with safe_open(path, **options) as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, TypeError) as error:
        raise RunError(f"Expected tensors for {framework} in {path}, but got: {error}. Load with torch.") from error
    return Checkpoint(tensors, read_state(path))


def check_intact(path: Path) -> None:
    """Raise an error that names the file if a bit of it has changed."""
    with _open(path) as file:
        try:
            _, written, digest = _digest(file)
        except (ValueError, OverflowError) as error:
            raise _damaged(path, str(error)) from error
        if written != digest:
            raise _damaged(path, "its content does not have the SHA-256 that it carries")


def read_state(path: Path) -> dict[str, Any]:
    """Read what a checkpoint says beside its tensors, from its header alone and unchecked."""
    with _open(path) as file:
        try:
            header = json.loads(_header(file))
            state: dict[str, Any] = json.loads(header["__metadata__"][_KEY])["state"]
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, f"its header cannot be read ({type(error).__name__})") from error
    return state


def _write(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Let safetensors write the file, without torch where there is no torch tensor."""
    from safetensors import SafetensorError

    try:
        if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
            from safetensors.numpy import save_file

            save_file({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}, path, metadata)
        else:
            from safetensors.torch import save_file as save_torch_file

            save_torch_file(_on_cpu(tensors), path, metadata)
    except SafetensorError as error:  # what it makes of a full disk
        raise OSError(str(error)) from error


def _on_cpu(tensors: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    plain, addresses = {}, set()
    for name, value in tensors.items():
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if address in addresses else tensor  # safetensors refuses two names for one memory
        addresses.add(address)
    return plain


def _digest(file: BinaryIO) -> tuple[int, bytes, bytes]:
    """Return where the digest stands, what stands there, and the digest of all the rest."""
    file.seek(0)
    header = _header(file)
    match = _DIGEST.search(header)
    if match is None:
        raise ValueError("it carries no SHA-256")
    blanked = header[: match.start(1)] + _BLANK.encode() + header[match.end(1) :]
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + blanked)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return 8 + match.start(1), match[1], digest.hexdigest().encode()


def _header(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length) if length <= _MOST_HEADER else b""
    if len(header) != length or not length:
        raise ValueError("it is cut off, or no safetensors file")
    return header


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise MissingFileError(
            f"Expected a checkpoint, but {path} does not exist. There are: {_listed(path)}."
        ) from None


def _damaged(path: Path, why: str) -> RunError:
    return RunError(
        f"Expected an intact checkpoint, but {path} is damaged: {why}. "
        f"Take another one ({_listed(path, 'there is none')}), or restore it from a copy."
    )


def _listed(path: Path, nothing: str = "none") -> str:
    """Return the names of the checkpoints beside a file."""
    return ", ".join(sorted(other.stem for other in path.parent.glob("*.safetensors") if other != path)) or nothing
