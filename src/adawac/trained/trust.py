"""What may be built because a file of somebody else says so: networks of known libraries, with plain options."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from adawac.config import ModelConfig
from adawac.errors import RunError
from adawac.models import MODELS

__all__ = ["check_harmless", "why_to_ask"]

# MONAI offers more; some of that downloads, or reads files, when it is built.
_MONAI = (
    "AttentionUnet",
    "BasicUNet",
    "DynUNet",
    "FlexibleUNet",
    "MedNeXt",
    "SegResNet",
    "SegResNetDS",
    "SwinUNETR",
    "UNETR",
    "UNet",
)
_FETCHES = re.compile(r"pretrain|download|hub|weights|cfg", re.IGNORECASE)
_OPENS = re.compile(r"checkpoint|file|path|url|cache|dir", re.IGNORECASE)
_PLAIN = re.compile(r"[\w.+-]{0,60}")  # a name; neither a path nor an address nor module:attribute


def check_harmless(model: ModelConfig, where: str) -> None:
    """Raise a `RunError` if building this network could run code, fetch or open files that its description names."""
    if reason := why_to_ask(model):
        raise RunError(
            f"Expected a network that adawac knows, with plain options, but {where} names {reason}. Nothing of it was "
            "imported. If you trust those who made it, allow it: --trust-code, or trust_code=True."
        )


def why_to_ask(model: ModelConfig) -> str | None:
    """Return what of a network's description might run code, fetch or open files; None if nothing does."""
    return _name_reason(model.name) or next(_option_reasons("options", model.options), None)


def _name_reason(name: str) -> str | None:
    family, colon, rest = name.partition(":")
    if not colon:
        foreign = any(point.name == name for point in entry_points(group=MODELS.group))
        return f"{name!r}, a network of another package" if foreign else None
    if family in ("smp", "timm") and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", rest):
        return None
    if family == "monai":
        return None if rest in _MONAI else f"{name!r}, which is not one of {', '.join(_MONAI)}"
    return f"{name!r}, which would be imported and run"


def _option_reasons(name: str, value: Any) -> Iterator[str]:
    """Yield what speaks against an option, or against those within it."""
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _option_reasons(inner, one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _option_reasons(name, one)
    elif value and _FETCHES.search(name):
        yield f"the option {name!r}, which may fetch or load something"
    elif isinstance(value, str) and (_OPENS.search(name) or not _PLAIN.fullmatch(value)):
        yield f"the option {name!r} with {value!r}, which may be a file or an address"
