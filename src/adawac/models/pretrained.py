"""Weights into a network: which tensor goes where, under which name, what is resized and what is left out."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import digits
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adawac.models.transunet import TransUNet
from adawac.models.weight_files import WeightsError, read_weights

# Rules that are applied in turn, from our names to theirs; a number in braces counts from one there.
_TRANSUNET = (
    (r"encoder\.pos_embed", "transformer.embeddings.position_embeddings"),
    (r"encoder\.patch_embed\.(.*)", r"transformer.embeddings.patch_embeddings.\1"),
    (r"encoder\.cnn\.stem\.conv\.(.*)", r"transformer.embeddings.hybrid_model.root.conv.\1"),
    (r"encoder\.cnn\.stem\.norm\.(.*)", r"transformer.embeddings.hybrid_model.root.gn.\1"),
    (r"encoder\.cnn\.stages\.(\d+)\.blocks\.(\d+)\.", r"transformer.embeddings.hybrid_model.body.block{\1}.unit{\2}."),
    (r"(.*\.unit.*\.)norm(\d\..*)", r"\1gn\2"),
    (r"(.*\.unit.*\.)downsample\.conv\.(.*)", r"\1downsample.\2"),
    (r"(.*\.unit.*\.)downsample\.norm\.(.*)", r"\1gn_proj.\2"),
    (r"encoder\.norm\.(.*)", r"transformer.encoder.encoder_norm.\1"),
    (r"encoder\.blocks\.(\d+)\.", r"transformer.encoder.layer.\1."),
    (r"(.*\.layer\.\d+\.)norm1\.(.*)", r"\1attention_norm.\2"),
    (r"(.*\.layer\.\d+\.)norm2\.(.*)", r"\1ffn_norm.\2"),
    (r"(.*\.layer\.\d+\.)mlp\.(.*)", r"\1ffn.\2"),
    (r"(.*\.layer\.\d+\.attn\.)proj\.(.*)", r"\1out.\2"),
    (r"decoder\.bridge\.(.*)", r"decoder.conv_more.\1"),
    (r"segmentation_head\.(.*)", r"segmentation_head.0.\1"),
)

_GOOGLE = (
    (r"encoder\.pos_embed", "Transformer/posembed_input/pos_embedding"),
    (r"encoder\.patch_embed\.", "embedding/"),
    (r"encoder\.cnn\.stem\.conv\.", "conv_root/"),
    (r"encoder\.cnn\.stem\.norm\.", "gn_root/"),
    (r"encoder\.cnn\.stages\.(\d+)\.blocks\.(\d+)\.", r"block{\1}/unit{\2}/"),
    (r"(block.*/)conv(\d)\.", r"\1conv\2/"),
    (r"(block.*/)norm(\d)\.", r"\1gn\2/"),
    (r"(block.*/)downsample\.conv\.", r"\1conv_proj/"),
    (r"(block.*/)downsample\.norm\.", r"\1gn_proj/"),
    (r"encoder\.norm\.", "Transformer/encoder_norm/"),
    (r"encoder\.blocks\.(\d+)\.", r"Transformer/encoderblock_\1/"),
    (r"(.*encoderblock_\d+/)norm1\.", r"\1LayerNorm_0/"),
    (r"(.*encoderblock_\d+/)norm2\.", r"\1LayerNorm_2/"),
    (r"(.*encoderblock_\d+/)attn\.qkv\.", r"\1MultiHeadDotProductAttention_1/qkv/"),
    (r"(.*encoderblock_\d+/)attn\.proj\.", r"\1MultiHeadDotProductAttention_1/out/"),
    (r"(.*encoderblock_\d+/)mlp\.fc1\.", r"\1MlpBlock_3/Dense_0/"),
    (r"(.*encoderblock_\d+/)mlp\.fc2\.", r"\1MlpBlock_3/Dense_1/"),
    (r"(.*(?:gn_root|gn\d|gn_proj|LayerNorm_\d|encoder_norm)/)weight", r"\1scale"),
    (r"(.*/)weight", r"\1kernel"),
)

Rules = tuple[tuple[str, str], ...]
_ATTENTION = ("query", "key", "value")


def joined_tensor(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return our parameter from one with another name, or from queries, keys and values that are apart."""
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def to_transunet(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a `TransUNet`'s state dict with the original's names, which the original's code loads."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = _their_names(name, _TRANSUNET)
        renamed.update(zip(names, tensor.chunk(3) if len(names) == 3 else [tensor], strict=True))
    return renamed


def google_tensor(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return our parameter from Google's: kernels end with the output there, and attention's are kept by head."""
    for ending, convert in _GOOGLE_TENSORS.items():
        if name.endswith(ending):
            return convert(tensors)
    return tensors[0] if name.endswith("pos_embed") else tensors[0].flatten()


_GOOGLE_TENSORS: Mapping[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "attn.qkv.weight": lambda parts: torch.cat([part.flatten(1).T for part in parts]),
    "attn.qkv.bias": lambda parts: torch.cat([part.flatten() for part in parts]),
    "attn.proj.weight": lambda parts: parts[0].flatten(0, -2).T,
    "fc1.weight": lambda parts: parts[0].T,
    "fc2.weight": lambda parts: parts[0].T,
    "patch_embed.weight": lambda parts: parts[0].permute(3, 2, 0, 1),
    **{f"conv{which}.weight": lambda parts: parts[0].permute(3, 2, 0, 1) for which in ("", 1, 2, 3)},
}


def _their_names(name: str, rules: Rules) -> list[str]:
    """Return another's names for one of our parameters: three where queries, keys and values are one."""
    for pattern, replacement in rules:
        name = re.sub(f"^{pattern}", replacement, name)
    name = re.sub(r"\{(\d+)\}", lambda number: str(int(number[1]) + 1), name)
    return [name.replace("qkv", part) for part in _ATTENTION] if "qkv" in name else [name]


logger = logging.getLogger(__name__)

# What wrappers and training codes put before every name.
_PREFIXES = (
    "",
    "module.",
    "model.",
    "_orig_mod.",
    "module.model.",
    "network.",
    "net.",
    "backbone.",
    "encoder.",
    "encoder.model.",
)
# Classifiers in Google's files; the class token's position goes with it.
_GOOGLE_HEADS = ("cls", "head/", "pre_logits/")


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What became of a file of weights.

    Attributes:
        source: the file.
        layout: whose names it has: `transunet` (the original's checkpoints), `google` (ViT npz), `network` (this very
            network's), `encoder` (an encoder's alone).
        loaded: the network's tensors that were taken from it, resized ones included.
        resized: those that had another shape: name → (shape in the file, shape in the network).
        left_out: names in the file that the network has no use for.
        untouched: the network's tensors that are not in the file and stay as initialised.
        colours: what was done so that the network takes colours in [0, 1]; empty where nothing was.
    """

    source: str
    layout: str
    loaded: tuple[str, ...]
    resized: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    left_out: tuple[str, ...]
    untouched: tuple[str, ...]
    colours: str = ""

    def __str__(self) -> str:
        """Return the summary that is logged."""
        parts = [f"{self.source} ({self.layout}): {len(self.loaded)} tensors loaded"]
        if self.resized:
            sizes = (f"{name} {before} → {after}" for name, (before, after) in self.resized.items())
            parts.append(f"resized: {', '.join(sizes)}")
        parts += [f"left out: {_some(self.left_out)}"] if self.left_out else []
        parts += [f"as initialised: {_some(self.untouched)}"] if self.untouched else []
        parts += [self.colours] if self.colours else []
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class ColourStatistics:
    """Mean and standard deviation of red, green and blue in [0, 1] that weights were trained with."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def load_weights(
    network: nn.Module,
    path: str | Path,
    *,
    encoder: str = "encoder",
    num_classes: int | None = None,
    colours: ColourStatistics | None = None,
) -> LoadReport:
    """Load a file into a network: the whole of it, or an encoder's weights into its encoder.

    A file that does not fit is refused, and the network stays as it was; so is one with layers between those of the
    network. Position embeddings are resized, RGB kernels are adapted to the network's channels, and a head for another
    number of classes is left out. A checkpoint of the original TransUNet switches `faithful` on.

    Args:
        network: any network.
        path: a checkpoint (`.pth`, `.safetensors`), one of Google's `.npz` for `TransUNet`, or the `model.json` of
            Keras' ResNet-50 for TensorFlow.js.
        encoder: the submodule that an encoder's weights go into.
        num_classes: the network's classes; by default as a `TransUNet` has it. Without them, any other network's head
            has to fit.
        colours: what an encoder's weights were trained with; they are changed so that the network takes red, green and
            blue in [0, 1].
    """
    tensors = read_weights(path)
    return place_weights(network, tensors, str(path), encoder=encoder, num_classes=num_classes, colours=colours)


def place_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    encoder: str = "encoder",
    num_classes: int | None = None,
    colours: ColourStatistics | None = None,
) -> LoadReport:
    """Load tensors by name, as `load_weights` does from a file; `source` is what messages call them."""
    ours: dict[str, Tensor] = network.state_dict()
    strides: Mapping[str, Stride] = {}
    keras = "bn_conv1/gamma" in tensors  # one of its ResNets
    if isinstance(network, TransUNet):
        layout, matched, left_out = _match_transunet(ours, tensors, source)
        grid, num_classes = network.encoder.grid, network.num_classes
    else:
        if keras:
            tensors, strides = _from_keras(tensors, source)
        layout, matched, left_out = _match_by_name(ours, tensors, source, encoder)
        grid = None
    fitted, resized = {}, {}
    for name, tensor in matched.items():
        fit = _fit(name, tensor, ours[name], grid)
        shape = ours[name].shape
        if fit is None and shape[:1] == (num_classes,) and tensor.shape[1:] == shape[1:]:
            left_out.append(name)  # the last layer, for another number of classes
        elif fit is None:
            head = "" if num_classes else " If this is the head, give num_classes: one of other classes is left out."
            raise WeightsError(
                f"Expected {name!r} of shape {tuple(shape)}, but {source!r} has {tuple(tensor.shape)}. It "
                f"belongs to a network of another kind or size. Build that one, or take a file for this one.{head}"
            )
        else:
            fitted[name] = fit
            if fit.shape != tensor.shape:
                resized[name] = (tuple(tensor.shape), tuple(fit.shape))
    _check_strides(network, encoder if layout == "encoder" else "", strides, source)
    nn.Module.load_state_dict(network, fitted, strict=False)  # names are ours: no override needs to translate them
    if isinstance(network, TransUNet) and layout == "transunet" and len(set(network.encoder.grid)) == 1:
        network.faithful = True  # it was trained with that border
    adapted = ""
    if colours is not None and layout in ("encoder", "google") and not keras:  # Keras' take [0, 1] already
        adapted = _take_unit_range(network.get_submodule(encoder), colours)
    report = LoadReport(
        source=source,
        layout=layout,
        loaded=tuple(fitted),
        resized=resized,
        left_out=tuple(left_out),
        untouched=tuple(name for name in ours if name not in fitted),
        colours=adapted,
    )
    logger.info("Weights: %s", report)
    return report


# -- which tensor goes where -------------------------------------------------------------------------------------------

Stride = tuple[int, ...]
Match = tuple[str, dict[str, Tensor], list[str]]  # layout, our name → tensor, names that are left out


def _match_transunet(ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> Match:
    tensors = _strip(tensors, ("transformer.embeddings.position_embeddings", "encoder.pos_embed"))
    if "transformer.embeddings.position_embeddings" in tensors:
        return "transunet", _convert(ours, tensors, source, _TRANSUNET), []
    if "encoder.pos_embed" in tensors:
        return "network", _convert(ours, tensors, source, ()), []
    if "Transformer/encoder_norm/scale" in tensors:
        heads = [name for name in tensors if name.startswith(_GOOGLE_HEADS)]
        rest = {name: tensor for name, tensor in tensors.items() if name not in heads}
        encoder = {name: tensor for name, tensor in ours.items() if name.startswith("encoder.")}
        return "google", _convert(encoder, rest, source, _GOOGLE, google_tensor), heads
    raise WeightsError(
        "Expected a TransUNet checkpoint or one of Google's ViT files (R50+ViT-B_16.npz, ViT-B_16.npz), but the names "
        f"in {source!r} are others, such as {_some(tuple(tensors))}. Choose the network that it was made for."
    )


def _convert(
    ours: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    source: str,
    rules: Rules,
    convert: Callable[[str, Sequence[Tensor]], Tensor] = joined_tensor,
) -> dict[str, Tensor]:
    """Translate each of our tensors; both sides must be used up."""
    needed = {name: _their_names(name, rules) if rules else [name] for name in ours}
    missing = [part for name, theirs in needed.items() if not _optional(name) for part in theirs if part not in tensors]
    if missing:
        raise WeightsError(
            f"Expected all parameters of this network in {source!r}, but it lacks {_some(missing)}. Build the network "
            "that it was made for (same name and options), or take another file."
        )
    if unknown := set(tensors).difference(*needed.values()):
        raise WeightsError(
            f"Expected the parameters of this network in {source!r}, but it has others: {_some(sorted(unknown))}. "
            "Build the network that it was made for (same name and options), or take another file."
        )
    converted = {}
    for name, theirs in needed.items():
        parts = [tensors[part] for part in theirs if part in tensors]
        try:
            if parts:
                converted[name] = convert(name, parts)
        except (RuntimeError, IndexError) as error:  # of another number of dimensions, or of sizes that do not match
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise WeightsError(
                f"Expected {_some(theirs)} in {source!r} to make {tuple(ours[name].shape)}, but got {shapes}. The file "
                "is damaged or belongs to another network. Take another one."
            ) from error
    return converted


def _match_by_name(ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str, encoder: str) -> Match:
    """Find the part of the network, the whole first, whose tensors are all in the file under some prefix."""
    parts = {"network": "", "encoder": f"{encoder}."} if encoder else {"network": ""}
    missing: list[str] = list(ours)
    skipped: list[str] = []
    for layout, part in parts.items():
        for prefix in _PREFIXES:
            theirs = {_plain(name.removeprefix(prefix)): name for name in tensors if name.startswith(prefix)}
            match = {name: theirs.get(_plain(name.removeprefix(part))) for name in ours if name.startswith(part)}
            lacking = [name for name, original in match.items() if original is None and not _optional(name)]
            if match and not lacking:
                used = {name: original for name, original in match.items() if original is not None}
                left_out = [name for name in tensors if name not in used.values()]
                between = _between([_plain(name.removeprefix(part)) for name in match], theirs)
                if not between:
                    return layout, {name: tensors[original] for name, original in used.items()}, left_out
                skipped = skipped or between
            missing = min(missing, lacking or list(ours), key=len)
    if skipped:
        raise WeightsError(
            f"Expected the layers of this network in {source!r}, but it has more of them in between: {_some(skipped)}. "
            "Build the network that it was made for (same name and options), or take another file."
        )
    raise WeightsError(
        f"Expected the weights of this network or of its encoder in {source!r}, but it lacks at least "
        f"{_some(missing)}. Build the network that it was made for (same name and options), or take another file."
    )


def _check_strides(network: nn.Module, part: str, strides: Mapping[str, Stride], source: str) -> None:
    """Refuse weights for other strides than the network's; one that keeps its maps large has none."""
    modules: dict[str, Any] = dict(network.named_modules())
    for name, stride in strides.items():
        ours = getattr(modules.get(f"{part}.{name}" if part else name), "stride", stride)
        if ours not in (stride, (1, 1)):
            raise WeightsError(
                f"Expected strides as in {source!r}, but {name!r} has {ours} in this network and {stride} there: the "
                "file's are in the first 1×1 convolution of a stage. Build smp:ARCH/resnet50 with "
                "model.options.stride_in_1x1=true."
            )


def _between(ours: Sequence[str], theirs: Mapping[str, str]) -> list[str]:
    """Return what a file has of numbered layers that this network skips, such as a deeper encoder's blocks.

    Stages after our last one, and what is not one of a row (a classifier), may be left out: what we have is whole
    without them.
    """
    rows: dict[tuple[str, ...], set[str]] = {}  # the kinds of layers in each part of our network, and where it ends
    ends: dict[tuple[str, ...], int] = {}
    for position, name in enumerate(ours):
        words = name.split(".")
        for depth, word in enumerate(words):
            rows.setdefault(tuple(words[:depth]), set()).add(word.rstrip(digits))
            ends[tuple(words[:depth])] = position
    known = set(ours)
    skipped = []
    for name, original in theirs.items():
        words = name.split(".")
        depth = max(depth for depth in range(len(words)) if tuple(words[:depth]) in ends)
        part, layer = tuple(words[:depth]), words[depth]
        numbered = layer != layer.rstrip(digits) and layer.rstrip(digits) in rows[part]
        if name not in known and numbered and ends[part] < len(ours) - 1:
            skipped.append(original)
    return skipped


def _strip(tensors: Mapping[str, Tensor], anchors: Iterable[str]) -> dict[str, Tensor]:
    """Remove what stands before all names, found by a name that must be there."""
    for anchor in anchors:
        for name in tensors:
            if name.endswith(anchor):
                prefix = name.removesuffix(anchor)
                return {full.removeprefix(prefix): tensor for full, tensor in tensors.items()}
    return dict(tensors)


def _plain(name: str) -> str:
    """Return a name as it compares: timm's feature extractors turn `stages.0` into `stages_0`."""
    return name.replace("_", ".")


def _optional(name: str) -> bool:
    return name.endswith("num_batches_tracked")  # older files have none; it counts only where momentum is None


# -- Keras' ResNets ----------------------------------------------------------------------------------------------------

# The same network as torchvision's and smp's, written differently (its weights came from Caffe):
# - Kernels have the output channel last.
# - Convolutions have biases, and the norms after them another ε. The norm's running mean takes up the one, its running
#   variance the other: in evaluation mode the network computes the same, and training goes on with torch's ε.
# - Images are blue, green, red in [0, 255] with ImageNet's means subtracted. That goes into the first convolution and
#   its norm, for red, green, blue in [0, 1]. Only the border differs: what is padded is black here, the mean there.
# - The stride of a stage is in its first 1×1 convolution, where torchvision has it in the 3×3 after it.

_KERAS_MEANS = (123.68, 116.779, 103.939)  # of red, green, blue
_TORCH_EPSILON = 1e-5  # of torch's BatchNorm2d
_KERAS_NORM = re.compile(r"bn(?P<stage>[2-5])(?P<block>[a-z])_branch(?P<branch>1|2[abc])")
_KERAS_BRANCHES = {
    "1": ("downsample.0", "downsample.1"),
    "2a": ("conv1", "bn1"),
    "2b": ("conv2", "bn2"),
    "2c": ("conv3", "bn3"),
}


def _from_keras(tensors: Mapping[str, Tensor], source: str) -> tuple[dict[str, Tensor], dict[str, Stride]]:
    """Return the weights under torchvision's names, for images in [0, 1], and the stride of each convolution.

    Args:
        tensors: the weights of each layer, with `epsilon` of its norms and `strides` of its convolutions.
        source: what messages call them.
    """
    weights: dict[str, Tensor] = {}
    strides: dict[str, Stride] = {}
    try:
        for norm in (name.removesuffix("/gamma") for name in tensors if name.endswith("/gamma")):
            conv, ours, our_norm = _keras_names(norm)
            kernel, shift = _keras_convolution(tensors, conv)
            weights[f"{ours}.weight"] = kernel.float()
            weights |= {
                f"{our_norm}.{part}": tensor.float() for part, tensor in _keras_norm(tensors, norm, shift).items()
            }
            weights[f"{our_norm}.num_batches_tracked"] = torch.tensor(0)
            strides[ours] = tuple(tensors[f"{conv}/strides"].tolist())
        if "fc1000/kernel" in tensors:
            weights |= {"fc.weight": tensors["fc1000/kernel"].T, "fc.bias": tensors["fc1000/bias"]}
    except KeyError as error:
        raise WeightsError(
            f"Expected a whole ResNet of Keras in {source!r}, but it lacks {error}. Get the file again."
        ) from error
    except (RuntimeError, IndexError) as error:  # sizes that do not match
        reason = str(error).splitlines()[0]
        raise WeightsError(
            f"Expected a ResNet of Keras in {source!r}, but the shapes of {norm!r} and of its convolution do not fit "
            f"({reason}). Get the file again."
        ) from error
    return weights, strides


def _keras_names(norm: str) -> tuple[str, str, str]:
    """Return the names of a norm's convolution there and here, and its own here."""
    if norm == "bn_conv1":
        return "conv1", "conv1", "bn1"
    match = _KERAS_NORM.fullmatch(norm)
    if match is None:
        raise KeyError(f"a known name for {norm}")
    block = f"layer{int(match['stage']) - 1}.{ord(match['block']) - ord('a')}"
    conv, ours = _KERAS_BRANCHES[match["branch"]]
    return norm.replace("bn", "res", 1), f"{block}.{conv}", f"{block}.{ours}"


def _keras_convolution(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Return a kernel as torch has it, and what the convolution adds to each channel of its output."""
    kernel, bias = tensors[f"{name}/kernel"].double().permute(3, 2, 0, 1), tensors[f"{name}/bias"].double()
    if name != "conv1":
        return kernel, bias
    kernel = kernel.flip(1)  # blue, green, red there
    means = torch.tensor(_KERAS_MEANS, dtype=torch.float64)
    return 255 * kernel, bias - kernel.sum((2, 3)) @ means


def _keras_norm(tensors: Mapping[str, Tensor], name: str, shift: Tensor) -> dict[str, Tensor]:
    variance, epsilon = tensors[f"{name}/moving_variance"].double(), tensors[f"{name}/epsilon"]
    return {
        "weight": tensors[f"{name}/gamma"],
        "bias": tensors[f"{name}/beta"],
        "running_mean": tensors[f"{name}/moving_mean"].double() - shift,
        "running_var": variance + (epsilon - _TORCH_EPSILON),
    }


# -- colours in [0, 1] -------------------------------------------------------------------------------------------------


def _take_unit_range(encoder: nn.Module, colours: ColourStatistics) -> str:
    """Change the first convolution of an encoder that was trained on normalised colours, and say what was done.

    What was subtracted goes into its bias, or into the running mean of the norm after it: the numbers stay those of
    normalised colours. Only the border differs: what is padded is black here, the mean there.
    """
    name, kernel = next(
        ((name, module) for name, module in encoder.named_modules() if isinstance(module, nn.Conv2d)), ("", None)
    )
    if kernel is None or kernel.in_channels != len(colours.mean):
        return _unadapted("its first convolution does not take three channels")
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (colours.mean, colours.std))
    if "Std" in type(kernel).__name__:  # standardised kernels: neither a shift nor a scale of all colours matters
        alike = len(set(colours.mean)) == len(set(colours.std)) == 1
        return "" if alike else _unadapted("its first kernels are weight-standardised")
    norm = None if kernel.bias is not None else _norm_after(kernel, encoder)
    if kernel.bias is None and norm is None:
        return _unadapted("its first convolution has neither a bias nor a batch norm after it")
    with torch.no_grad():
        scaled = kernel.weight.double() / std[:, None, None]
        shift = scaled.sum((2, 3)) @ mean
        kernel.weight.copy_(scaled)
        if norm is not None:
            norm.running_mean.add_(shift)
        elif kernel.bias is not None:
            kernel.bias.sub_(shift)
    return f"{name} takes colours in [0, 1] now"


def _unadapted(reason: str) -> str:
    logger.warning(
        "The weights were trained on normalised colours, but the network gets colours in [0, 1]: %s.", reason
    )
    return f"not adapted to colours in [0, 1]: {reason}"


def _norm_after(kernel: nn.Conv2d, encoder: nn.Module) -> Any:
    """Return the batch norm that takes a convolution's output as it is; None where there is none."""
    outputs: list[Tensor] = []
    norms: list[nn.Module] = []

    def look(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        if outputs and inputs[0] is outputs[0]:
            norms.append(norm)

    batch_norms = (module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d))
    hooks = [norm.register_forward_pre_hook(look) for norm in batch_norms]
    hooks.append(kernel.register_forward_hook(lambda module, inputs, output: outputs.append(output)))
    training = encoder.training
    try:
        with torch.no_grad():
            encoder.eval()(torch.zeros(1, kernel.in_channels, 64, 64))
    except Exception:  # an encoder that takes other sizes, or fails in its own way
        logger.debug("looking for the norm after the first convolution", exc_info=True)
    finally:
        encoder.train(training)
        for hook in hooks:
            hook.remove()
    return norms[0] if len(norms) == 1 else None


# -- shapes ------------------------------------------------------------------------------------------------------------


def _fit(name: str, tensor: Tensor, ours: Tensor, grid: tuple[int, int] | None) -> Tensor | None:
    """Return a tensor in our shape, or None where that makes no sense."""
    if name.endswith("pos_embed") and grid is not None and tensor.dim() == 3 and tensor.shape[2] == ours.shape[2]:
        return tensor if tensor.shape == ours.shape else _resize_positions(tensor, grid)
    if tensor.shape == ours.shape:
        return tensor
    if tensor.dim() == ours.dim() == 4 and tensor.shape[1] == 3 and _without_inputs(tensor) == _without_inputs(ours):
        from timm.models import adapt_input_conv

        adapted: Tensor = adapt_input_conv(ours.shape[1], tensor)
        return adapted
    return None


def _without_inputs(kernel: Tensor) -> tuple[int, ...]:
    return (kernel.shape[0], *kernel.shape[2:])


def _resize_positions(tokens: Tensor, grid: tuple[int, int]) -> Tensor | None:
    """Resize position embeddings bilinearly with aligned corners, without the class token's if there is one."""
    side = math.isqrt(tokens.shape[1])
    if side == 0 or tokens.shape[1] - side * side not in (0, 1):
        return None  # none, or of a rectangular grid, whose sides cannot be known
    positions = tokens[:, -side * side :]
    if (side, side) == grid:
        return positions
    square = positions.transpose(1, 2).unflatten(2, (side, side)).float()
    return F.interpolate(square, grid, mode="bilinear", align_corners=True).flatten(2).transpose(1, 2)


def _some(names: Sequence[str], count: int = 3) -> str:
    shown = ", ".join(repr(name) for name in names[:count])
    return shown if len(names) <= count else f"{shown} and {len(names) - count} more"
