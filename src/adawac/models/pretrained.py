"""Weights into a network: which tensor goes where, under which name, what is resized and what is left out."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import digits

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

_ATTENTION = ("query", "key", "value")


def transunet_names(name: str) -> list[str]:
    """Return the original's names for one of our parameters: three where queries, keys and values are one."""
    renamed = _rename(name, _TRANSUNET)
    return [renamed.replace(".qkv.", f".{part}.") for part in _ATTENTION] if ".qkv." in renamed else [renamed]


def transunet_tensor(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return our parameter from the original's."""
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def to_transunet(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a `TransUNet`'s state dict with the original's names, which the original's code loads."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = transunet_names(name)
        renamed.update(zip(names, tensor.chunk(3) if len(names) == 3 else [tensor], strict=True))
    return renamed


def google_names(name: str) -> list[str]:
    """Return the names in Google's npz files for one of our encoder's parameters."""
    renamed = _rename(name, _GOOGLE)
    return [renamed.replace("/qkv/", f"/{part}/") for part in _ATTENTION] if "/qkv/" in renamed else [renamed]


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


def _rename(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(f"^{pattern}", replacement, name)
    return re.sub(r"\{(\d+)\}", lambda number: str(int(number[1]) + 1), name)


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
    """

    source: str
    layout: str
    loaded: tuple[str, ...]
    resized: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    left_out: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        """Return the summary that is logged."""
        parts = [f"{self.source} ({self.layout}): {len(self.loaded)} tensors loaded"]
        if self.resized:
            sizes = (f"{name} {before} → {after}" for name, (before, after) in self.resized.items())
            parts.append(f"resized: {', '.join(sizes)}")
        parts += [f"left out: {_some(self.left_out)}"] if self.left_out else []
        parts += [f"as initialised: {_some(self.untouched)}"] if self.untouched else []
        return "; ".join(parts)


def load_weights(
    network: nn.Module, path: str | Path, *, encoder: str = "encoder", num_classes: int | None = None
) -> LoadReport:
    """Load a file into a network: the whole of it, or an encoder's weights into its encoder.

    A file that does not fit is refused, and the network stays as it was; so is one with layers between those of the
    network. Position embeddings are resized, RGB kernels are adapted to the network's channels, and a head for another
    number of classes is left out. A checkpoint of the original TransUNet switches `faithful` on.

    Args:
        network: any network.
        path: a checkpoint (`.pth`, `.safetensors`), or one of Google's `.npz` for `TransUNet`.
        encoder: the submodule that an encoder's weights go into.
        num_classes: the network's classes; by default as a `TransUNet` has it. Without them, any other network's head
            has to fit.
    """
    return place_weights(network, read_weights(path), str(path), encoder=encoder, num_classes=num_classes)


def place_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    encoder: str = "encoder",
    num_classes: int | None = None,
) -> LoadReport:
    """Load tensors by name, as `load_weights` does from a file; `source` is what messages call them."""
    ours: dict[str, Tensor] = network.state_dict()
    if isinstance(network, TransUNet):
        layout, matched, left_out = _match_transunet(ours, tensors, source)
        grid, num_classes = network.encoder.grid, network.num_classes
    else:
        layout, matched, left_out = _match_by_name(ours, tensors, source, encoder)
        grid = None
    fitted, resized = {}, {}
    for name, tensor in matched.items():
        fit = _fit(name, tensor, ours[name], grid)
        if fit is None and _is_head(tensor, ours[name], num_classes):
            left_out.append(name)
        elif fit is None:
            head = "" if num_classes else " If this is the head, give num_classes: one of other classes is left out."
            raise WeightsError(
                f"Expected {name!r} of shape {tuple(ours[name].shape)}, but {source!r} has {tuple(tensor.shape)}. It "
                f"belongs to a network of another kind or size. Build that one, or take a file for this one.{head}"
            )
        else:
            fitted[name] = fit
            if fit.shape != tensor.shape:
                resized[name] = (tuple(tensor.shape), tuple(fit.shape))
    nn.Module.load_state_dict(network, fitted, strict=False)  # names are ours: no override needs to translate them
    if isinstance(network, TransUNet) and layout == "transunet" and len(set(network.encoder.grid)) == 1:
        network.faithful = True  # it was trained with that border
    report = LoadReport(
        source=source,
        layout=layout,
        loaded=tuple(fitted),
        resized=resized,
        left_out=tuple(left_out),
        untouched=tuple(name for name in ours if name not in fitted),
    )
    logger.info("Weights: %s", report)
    return report


# -- which tensor goes where -------------------------------------------------------------------------------------------

Match = tuple[str, dict[str, Tensor], list[str]]  # layout, our name → tensor, names that are left out


def _match_transunet(ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> Match:
    tensors = _strip(tensors, ("transformer.embeddings.position_embeddings", "encoder.pos_embed"))
    if "transformer.embeddings.position_embeddings" in tensors:
        return "transunet", _convert(ours, tensors, source, transunet_names, transunet_tensor), []
    if "encoder.pos_embed" in tensors:
        return "network", _convert(ours, tensors, source, lambda name: [name], lambda _, parts: parts[0]), []
    if "Transformer/encoder_norm/scale" in tensors:
        heads = [name for name in tensors if name.startswith(_GOOGLE_HEADS)]
        rest = {name: tensor for name, tensor in tensors.items() if name not in heads}
        encoder = {name: tensor for name, tensor in ours.items() if name.startswith("encoder.")}
        return "google", _convert(encoder, rest, source, google_names, google_tensor), heads
    raise WeightsError(
        "Expected a TransUNet checkpoint or one of Google's ViT files (R50+ViT-B_16.npz, ViT-B_16.npz), but the names "
        f"in {source!r} are others, such as {_some(tuple(tensors))}. Choose the network that it was made for."
    )


def _convert(
    ours: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    source: str,
    names: Callable[[str], list[str]],
    convert: Callable[[str, Sequence[Tensor]], Tensor],
) -> dict[str, Tensor]:
    """Translate each of our tensors; both sides must be used up."""
    needed = {name: names(name) for name in ours}
    missing = [part for name, theirs in needed.items() if not _optional(name) for part in theirs if part not in tensors]
    if missing:
        raise WeightsError(
            f"Expected all parameters of this network in {source!r}, but it lacks {_some(missing)}. Build the network "
            "that it was made for (same name and options), or take another file."
        )
    unknown = set(tensors).difference(*needed.values())
    if unknown:
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


def _is_head(tensor: Tensor, ours: Tensor, num_classes: int | None) -> bool:
    """Say whether this is the last layer, for another number of classes."""
    return ours.dim() > 0 and ours.shape[0] == num_classes and tensor.shape[1:] == ours.shape[1:]


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
