"""Networks by name: our own, and those of smp, timm and MONAI."""

import contextlib
import fnmatch
import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from adawac.errors import AdawacError, ConfigError, MissingDependencyError, UnknownNameError, check_known, near
from adawac.lazy import library, quietly
from adawac.models.pretrained import ColourStatistics, LoadReport, load_weights, place_weights
from adawac.models.transunet import TransUNet
from adawac.models.weight_files import imagenet_file, imagenet_statistics, offline_weights
from adawac.registry import Registry

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network with random weights, and where things are in it.

    Attributes:
        network: the network.
        tap: the submodule that gives its latent; empty where it must be named.
        encoder: the submodule that an encoder's weights belong to; empty where there is none.
        imagenet: whose ImageNet weights fit: a file of Google's, or an encoder of smp (`tu-…` for timm's); or empty.
    """

    network: nn.Module
    tap: str
    encoder: str = ""
    imagenet: str = ""


# Factories: each is called with those of num_classes, in_channels and image_size that it has parameters for, and with
# options. Those of other packages may return a network alone or (network, tap) instead of a `Built`.
MODELS: Registry[Callable[..., Any]] = Registry("model")

# -- segmentation_models_pytorch, and timm through it ------------------------------------------------------------------


def smp_network(name: str, num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """Build `ARCH/ENCODER`; without an encoder it is resnet34, for DPT ViT-B/16.

    ResNets of bottlenecks take `stride_in_1x1`: the stride of a stage is then in its first convolution, as in the first
    ResNets.
    """
    smp = library("segmentation_models_pytorch", "segmentation-models-pytorch")
    wanted, _, encoder = name.partition("/")
    architecture = _smp_architecture(wanted)
    encoder = encoder or _default_encoder(architecture)
    _check_encoder(encoder)
    if architecture == "DPT":  # its transformer would otherwise take the size that it was pretrained with only
        options.setdefault("dynamic_img_size", True)
    stride_in_1x1 = _has_bottlenecks(encoder) and options.pop("stride_in_1x1", False)
    with quietly():  # smp's own `timm-` names are deprecated, but still offered
        network = smp.create_model(
            architecture, encoder, encoder_weights=None, in_channels=in_channels, classes=num_classes, **options
        )
    if stride_in_1x1:
        _move_strides(network.encoder)
    stride = network.encoder.output_stride if network.requires_divisible_input_shape else 1
    if _not_divisible(image_size, stride):
        raise _indivisible(f"smp:{architecture}/{encoder}", image_size, stride)
    inner = "encoder.model" if hasattr(network.encoder, "model") else "encoder"
    return Built(network=network, tap=_smp_tap(network), encoder=inner, imagenet=encoder)


def timm_network(name: str, num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """Build a UNet on one of timm's encoders: short for `smp:Unet/tu-NAME`."""
    return smp_network(f"Unet/tu-{name}", num_classes, in_channels, image_size, **options)


def smp_architectures() -> list[str]:
    """Return the names of smp's architectures."""
    smp = library("segmentation_models_pytorch", "segmentation-models-pytorch")
    return [architecture.__name__ for architecture in smp.MODEL_ARCHITECTURES_MAPPING.values()]


def smp_encoders() -> list[str]:
    """Return the names of smp's own encoders; timm's come on top, as `tu-NAME`."""
    return list(library("segmentation_models_pytorch", "segmentation-models-pytorch").encoders.get_encoder_names())


def _default_encoder(architecture: str) -> str:
    """Return the encoder of an architecture that is named alone."""
    return "tu-vit_base_patch16_224" if architecture == "DPT" else "resnet34"


def smp_names() -> Iterator[str]:
    """Yield each architecture with its default encoder."""
    for architecture in smp_architectures():
        yield f"smp:{architecture}/{_default_encoder(architecture)}"


def _smp_architecture(name: str) -> str:
    known = {architecture.lower(): architecture for architecture in smp_architectures()}
    if name.lower() not in known:
        raise UnknownNameError(
            f"Expected smp:ARCH/ENCODER with one of smp's architectures, but got {name!r}. Near names: "
            f"{near(name, known.values())}."
        )
    return known[name.lower()]


def _check_encoder(name: str) -> None:
    known = smp_encoders()
    if name.startswith("tu-"):
        timm = library("timm", "timm")
        if timm.is_model(name[3:].partition(".")[0]):
            return
        known = [f"tu-{model}" for model in timm.list_models()]
    check_known(name, known, "one of smp's encoders or tu-NAME for one of timm's")


def _has_bottlenecks(encoder: str) -> bool:
    """Tell whether an encoder of smp is made of torchvision's bottlenecks."""
    encoders = library("segmentation_models_pytorch", "segmentation-models-pytorch").encoders.encoders
    bottleneck = library("torchvision.models.resnet", "torchvision").Bottleneck
    return encoder in encoders and encoders[encoder]["params"].get("block") is bottleneck


def _move_strides(encoder: nn.Module) -> None:
    """Exchange the strides of a bottleneck's first convolution, which is 1×1, and of the 3×3 after it."""
    bottleneck = library("torchvision.models.resnet", "torchvision").Bottleneck
    for block in encoder.modules():
        if isinstance(block, bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def _smp_tap(network: Any) -> str:
    """Return the deepest feature map's module: the encoder gives a list of maps, but DPT's gives tokens as well."""
    indices = getattr(network.encoder, "_output_indices", None)
    if indices is None:
        return "encoder"
    return f"encoder.model.{network.encoder.model.feature_info[indices[-1]]['module']}"


def _not_divisible(size: Size, stride: int) -> bool:
    return any(side % stride for side in size)


def _indivisible(name: str, size: Size, stride: int) -> ConfigError:
    return ConfigError(
        f"Expected an image size divisible by {stride} for {name}, but got {size[0]}×{size[1]}. Choose the nearest "
        f"multiple, such as {max(stride, round(size[0] / stride) * stride)}."
    )


# -- MONAI -------------------------------------------------------------------------------------------------------------

# What a constructor cannot do without, and the submodule that gives the latent. A model folder of somebody else may
# name these networks (`adawac.inference.trained_network`): building one must neither download nor open files.
_LEVELS = {"channels": (32, 64, 128, 256, 512), "strides": (2, 2, 2, 2)}
MONAI_DEFAULTS: Mapping[str, tuple[dict[str, Any], str]] = {
    "AttentionUnet": (_LEVELS, "model.1{levels}.submodule"),
    "BasicUNet": ({}, "down_4"),
    "DynUNet": ({"kernel_size": (3,) * 6, "strides": (1, *(2,) * 5), "upsample_kernel_size": (2,) * 5}, "bottleneck"),
    "FlexibleUNet": ({"backbone": "resnet34"}, "encoder"),
    "MedNeXt": ({}, "bottleneck"),
    "SegResNet": ({}, "down_layers.{last}"),
    "SegResNetDS": ({}, "encoder"),
    "SwinUNETR": ({}, "swinViT"),
    "UNETR": ({}, "vit.norm"),
    "UNet": (_LEVELS, "model.1{levels}.submodule"),
}


def monai_network(name: str, num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """Build one of MONAI's networks in 2D; what its constructor needs beyond that is given as options."""
    nets = library("monai.networks.nets", "adawac[monai]")
    constructor = getattr(nets, name, None)
    if not callable(constructor):
        known = [attribute for attribute in dir(nets) if callable(getattr(nets, attribute))]
        raise UnknownNameError(f"Expected one of MONAI's networks, but got {name!r}. Near names: {near(name, known)}.")
    defaults, tap = MONAI_DEFAULTS.get(name, ({}, ""))
    options = {**defaults, **options}
    sizes = {"spatial_dims": 2, "in_channels": in_channels, "out_channels": num_classes}

    def construct(size: Size) -> Any:
        with quietly():
            return constructor(**accepted(constructor, {**sizes, "img_size": size}, loose=("img_size",)) | options)

    network = construct(image_size)
    _check_by_trial(construct, f"monai:{name}", in_channels, image_size)
    levels = ".submodule.1" * (len(options.get("strides", ())) - 1)
    last = len(options.get("blocks_down", range(4))) - 1
    return Built(network=network, tap=tap.format(levels=levels, last=last), encoder=tap if tap.isidentifier() else "")


def _check_by_trial(construct: Callable[[Size], Any], name: str, in_channels: int, image_size: Size) -> None:
    """Refuse a size that only a forward pass would refuse, in words of its own, where multiples of something pass."""

    def passes(size: Size) -> bool:
        try:
            with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are not used
                construct(size).to("meta")(torch.empty(2, in_channels, *size, device="meta"))
        except Exception:  # each network fails in its own way
            return False
        return True

    strides = [stride for stride in (2, 4, 8, 16, 32) if _not_divisible(image_size, stride)]
    if not strides or passes(image_size):
        return
    for stride in strides:
        odd = [2 * (side // (2 * stride)) + 3 for side in image_size]  # divisible by this stride, and by no larger one
        if passes((stride * odd[0], stride * odd[1])):
            raise _indivisible(name, image_size, stride)


# -- the user's own ----------------------------------------------------------------------------------------------------


def custom_network(path: str) -> Callable[..., Any]:
    """Import `package.module:factory`."""
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownNameError(
            f"Expected package.module:factory, but could not import {path!r} ({error}). Check the spelling, and that "
            "Python finds it: install the package, or set PYTHONPATH to its folder."
        ) from error
    if not callable(factory):
        raise ConfigError(f"Expected a factory at {path!r}, but got a {type(factory).__name__}. Name a function.")
    return factory  # type: ignore[no-any-return]


def as_built(result: Any, name: str) -> Built:
    """Return what a factory gave as a `Built`: a network, or (network, tap)."""
    if isinstance(result, Built):
        return result
    network, tap = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
    if not isinstance(network, nn.Module) or not isinstance(tap, str):
        raise ConfigError(
            f"Expected {name!r} to return a torch.nn.Module, or one with the name of its tap, but got a "
            f"{type(result).__name__}. Return `network` or `(network, tap_name)`."
        )
    inner = "encoder" if isinstance(getattr(network, "encoder", None), nn.Module) else ""
    return Built(network=network, tap=tap or inner, encoder=inner)


def accepted(function: Callable[..., Any], arguments: dict[str, Any], loose: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return those of the arguments that a function takes; with **kwargs all but the loose ones."""
    parameters = inspect.signature(function).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in arguments.items() if name in parameters or (anything and name not in loose)}


def option_names(name: str) -> set[str] | None:
    """Return the names of a network's options; None where only building it tells."""
    if name in ("transunet", "transunet-vit", "transunet-small"):
        fixed = {"num_classes", "in_channels", "image_size", *(["cnn"] if name == "transunet-vit" else [])}
        return set(inspect.signature(TransUNet).parameters) - fixed
    family, _, rest = ("smp:Unet/resnet34" if name == "unet" else name).partition(":")
    if family != "smp":
        return None
    architecture, _, encoder = rest.partition("/")
    architecture = _smp_architecture(architecture)
    if (encoder or _default_encoder(architecture)).startswith("tu-"):
        return None  # timm's encoders take more, and check it; smp's own would ignore it
    smp = library("segmentation_models_pytorch", "segmentation-models-pytorch")
    fixed = {"encoder_name", "encoder_weights", "in_channels", "classes", "kwargs"}
    known = set(inspect.signature(getattr(smp, architecture)).parameters) - fixed
    return known | {"stride_in_1x1"} if _has_bottlenecks(encoder or _default_encoder(architecture)) else known


FAMILIES: Mapping[str, Callable[..., Built]] = {"smp": smp_network, "timm": timm_network, "monai": monai_network}


# -- the paper's, and one for a laptop ---------------------------------------------------------------------------------


@MODELS.register("unet")
def unet(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """The paper's UNet, with a ResNet-34 as encoder: short for smp:Unet/resnet34."""
    return smp_network("Unet/resnet34", num_classes, in_channels, image_size, **options)


@MODELS.register("transunet")
def transunet(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """The paper's TransUNet, R50-ViT-B/16."""
    return _built(TransUNet(num_classes, in_channels, image_size, **options), "R50+ViT-B_16.npz")


@MODELS.register("transunet-vit")
def transunet_vit(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """TransUNet on ViT-B/16 alone: no CNN, no skip connections."""
    return _built(TransUNet(num_classes, in_channels, image_size, cnn=False, **options), "ViT-B_16.npz")


@MODELS.register("transunet-small")
def transunet_small(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """TransUNet for a laptop: narrower and shallower throughout."""
    small: dict[str, Any] = {"embed_dim": 192, "depth": 4, "num_heads": 3, "layers": (1, 2, 3), "width": 0.5}
    small |= {"bridge": 128, "decoder_channels": (96, 64, 32, 16)}
    return _built(TransUNet(num_classes, in_channels, image_size, **small | options), "")


def _built(network: TransUNet, imagenet: str) -> Built:
    return Built(network=network, tap="encoder", encoder="encoder", imagenet=imagenet)


# -- a network by name, and the list of what can be built --------------------------------------------------------------


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
        factory = partial(FAMILIES[family], rest) if family in FAMILIES else custom_network(name)
    known = option_names(name)
    for option in options:
        check_known(option, options if known is None else known, f"an option of {name}", ConfigError)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": size}
    try:
        return as_built(factory(**accepted(factory, sizes), **options), name)
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
    yield from smp_names()
    yield from (f"monai:{name}" for name in MONAI_DEFAULTS)


def _all_names() -> list[str]:
    pairs = itertools.product(smp_architectures(), smp_encoders())
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
