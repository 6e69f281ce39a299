"""What TransUNet's parameters are called elsewhere: in the original's checkpoints, and in Google's ViT files."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["google_names", "google_tensor", "to_transunet", "transunet_names", "transunet_tensor"]

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
