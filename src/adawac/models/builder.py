"""A network by name, with the name of the submodule that gives its latent; and the list of what can be built."""

import contextlib
import fnmatch
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from adawac.errors import AdawacError, ConfigError, MissingDependencyError, check_known
from adawac.models import networks
from adawac.models.networks import MODELS, Built
from adawac.models.pretrained import ColourStatistics, LoadReport, load_weights, place_weights
from adawac.models.transunet import TransUNet
from adawac.models.weight_files import imagenet_file, imagenet_statistics, offline_weights


def build(
    name: str,
    num_classes: int,
    in_channels: int = 1,
    image_size: int | tuple[int, int] = 224,
    *,
    pretrained: str | None = None,
    faithful: bool | None = None,
    tap: str | None = None,
    seed: int | None = None,
    colours: bool = False,
    **options: Any,
) -> tuple[nn.Module, str]:
    """Build a network and return it with the name of the submodule for `adawac.EncoderTap`.

    Args:
        name: `unet`, `transunet`, `transunet-vit`, `transunet-small`, `smp:ARCH/ENCODER`, `timm:ENCODER`, `monai:NAME`,
            `package.module:factory`, or what another package registered; `list_models` lists them.
        num_classes: classes, background included.
        in_channels: channels of the images.
        image_size: height and width, or one number for both.
        pretrained: `imagenet` (downloaded), `imagenet-offline` (from the extra `pretrained`), or a file: a checkpoint
            of this network, of its encoder, of the original TransUNet, or one of Google's ViT npz.
        faithful: TransUNet only: keep the original's border; by default where one of its checkpoints is loaded.
        tap: another submodule for the latent; needed where a network has no encoder that is known.
        seed: makes the random initialisation a function of this number; by default torch's generator goes on.
        colours: the channels are red, green and blue in [0, 1], as those of pictures: an encoder's pretrained weights,
            which were trained on normalised colours, are changed to take these.
        **options: further arguments of the network.

    The network carries a `load_report` that says what was loaded, resized and left out (None without weights).
    """
    with _seeded(seed):
        built = build_untrained(name, num_classes, in_channels, image_size, **options)
    network: Any = built.network
    if faithful is not None and not isinstance(network, TransUNet):
        raise ConfigError(f"Expected faithful for a TransUNet only, but got it for {name!r}. Leave it out.")
    if faithful is not None:
        network.faithful = faithful
    report = _load(built, name, pretrained, num_classes, colours) if pretrained else None
    if report is not None and report.layout == "transunet":
        network.faithful = faithful is not False
    network.load_report = report
    return network, _checked_tap(network, name, tap or built.tap)


def build_untrained(
    name: str, num_classes: int, in_channels: int, image_size: int | tuple[int, int], **options: Any
) -> Built:
    """Build a network as it is initialised."""
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or min(size) < 1 or num_classes < 1 or in_channels < 1:
        raise ConfigError(
            "Expected at least one class and one channel, and a positive height and width, but got "
            f"num_classes={num_classes}, in_channels={in_channels}, image_size={image_size}."
        )
    family, _, rest = name.partition(":")
    factory: Callable[..., Any]
    if name in MODELS or ":" not in name:
        factory = MODELS[name]
    else:
        factory = (
            partial(networks.FAMILIES[family], rest) if family in networks.FAMILIES else networks.custom_network(name)
        )
    known = networks.option_names(name)
    for option in options:
        check_known(option, options if known is None else known, f"an option of {name}", ConfigError)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": size}
    try:
        return networks.as_built(factory(**networks.accepted(factory, sizes), **options), name)
    except AdawacError:
        raise
    except ImportError as error:  # what some of MONAI's networks need besides MONAI
        raise MissingDependencyError(
            f"Expected what {name!r} needs to be installed, but importing it failed: {str(error).splitlines()[0]} "
            "Install the library that it names."
        ) from error
    except (TypeError, ValueError, KeyError, AssertionError, NotImplementedError) as error:
        wanted = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        raise ConfigError(
            f"Expected {name!r} to take {wanted}, but it refused: {error}. Change the options or the network."
        ) from error


def _load(built: Built, name: str, pretrained: str, num_classes: int, colours: bool) -> LoadReport:
    where: dict[str, Any] = {"encoder": built.encoder, "num_classes": num_classes}
    if colours and built.imagenet:
        mean, std = imagenet_statistics(built.imagenet)
        where["colours"] = ColourStatistics(mean=mean, std=std)
    if pretrained in ("imagenet", "imagenet-offline") and not built.imagenet:
        raise ConfigError(
            f"Expected a network whose ImageNet weights are known, but got {name!r}. Give its weights as a file, or "
            "choose unet, transunet or smp:ARCH/ENCODER."
        )
    if pretrained == "imagenet-offline":
        return place_weights(built.network, offline_weights(built.imagenet), pretrained, **where)
    path = imagenet_file(built.imagenet) if pretrained == "imagenet" else pretrained
    return load_weights(built.network, path, **where)


def _checked_tap(network: nn.Module, name: str, tap: str) -> str:
    modules = [module for module, _ in network.named_modules() if module]
    if not tap:
        outer = ", ".join(module for module in modules if "." not in module)
        raise ConfigError(
            f"Expected the name of the submodule that gives {name!r} its latent, but none is known. Set tap= to the "
            f"deepest part of its encoder: {outer}, or one within these."
        )
    check_known(tap, modules, f"a submodule of {name!r} as tap", count=6)
    return tap


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Draw from a generator of its own, and leave torch's as it is."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One network that can be built.

    Attributes:
        name: for `build`.
        parameters: their number, for one channel and nine classes at 224×224; None where it cannot be built here.
        tap: the submodule that gives its latent.
        note: what it is, or what is missing.
    """

    name: str
    parameters: int | None
    tap: str
    note: str

    @property
    def millions(self) -> float | None:
        """The number of parameters in millions."""
        return None if self.parameters is None else round(self.parameters / 1e6, 2)


def list_models(pattern: str | None = None) -> list[ModelInfo]:
    """Return what can be built, without allocating it.

    Args:
        pattern: names to list, as in a shell: `"smp:Unet/*"` gives all of smp's encoders, `"monai:*"` MONAI's networks.
            By default all named networks, each of smp's architectures with its default encoder, and MONAI's networks.
    """
    return [_describe(name) for name in (_names() if pattern is None else fnmatch.filter(_all_names(), pattern))]


def _names() -> Iterator[str]:
    yield from MODELS
    yield from networks.smp_names()
    yield from (f"monai:{name}" for name in networks.MONAI_DEFAULTS)


def _all_names() -> list[str]:
    pairs = itertools.product(networks.smp_architectures(), networks.smp_encoders())
    return list(dict.fromkeys([*_names(), *(f"smp:{architecture}/{encoder}" for architecture, encoder in pairs)]))


def _describe(name: str) -> ModelInfo:
    if name.startswith("monai:") and importlib.util.find_spec("monai") is None:
        return ModelInfo(name=name, parameters=None, tap="", note="needs pip install 'adawac[monai]'")
    try:
        built = _on_meta(name)
    except Exception as error:  # smp does not combine every encoder with every architecture
        return ModelInfo(name=name, parameters=None, tap="", note=str(error).splitlines()[0])
    count = sum(parameter.numel() for parameter in built.network.parameters())
    return ModelInfo(name=name, parameters=count, tap=built.tap, note=_note(name))


def _on_meta(name: str) -> Built:
    """Build a network without memory for its parameters, where its constructor can do that."""
    try:
        with torch.device("meta"):
            return build_untrained(name, num_classes=9, in_channels=1, image_size=224)
    except Exception:  # some read numbers from a tensor; a real fault comes up again
        return build_untrained(name, num_classes=9, in_channels=1, image_size=224)


def _note(name: str) -> str:
    if name in MODELS:
        return (inspect.getdoc(MODELS[name]) or "").partition("\n")[0]
    return "MONAI" if name.startswith("monai:") else "segmentation_models_pytorch"
