"""Trained networks for use elsewhere: `adawac.export_model("runs/adawac", "model.onnx")`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {"Exported": "exporting", "export_model": "exporting", "export_onnx": "onnx", "save_model": "folder"}

__all__ = ["Exported", "export_model", "export_onnx", "save_model"]

if TYPE_CHECKING:
    from adawac.export.exporting import Exported, export_model
    from adawac.export.folder import save_model
    from adawac.export.onnx import export_onnx


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.export.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.export' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
