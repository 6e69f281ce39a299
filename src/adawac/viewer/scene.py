"""Everything that the page needs: what the server has, and a description of it as plain data."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import adawac
from adawac.figures.style import class_colour
from adawac.viewer.image_layer import Affine, Scan, read_scan
from adawac.viewer.label_layer import LabelMap, read_label_map
from adawac.viewer.server import Resource

__all__ = ["Scene", "build_scene"]

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A scan with its layers.

    Attributes:
        resources: All that the server has, by name.
        description: What the page is told, as plain data.
        notes: What a reader should know: volumes that were left out, grids that differ.
    """

    resources: dict[str, Resource]
    description: dict[str, Any]
    notes: tuple[str, ...]


def build_scene(scan: Path | str, labels: Iterable[Path | str] = ()) -> Scene:
    """Read a scan and its label maps."""
    base = read_scan(Path(scan))
    layers = [read_label_map(Path(one), base) for one in labels]
    notes = (*base.notes, *(note for layer in layers for note in layer.notes))
    volumes = {f"volumes/0{base.ending}": base.resource}
    volumes |= {f"volumes/{number}.nii.gz": layer.resource for number, layer in enumerate(layers, start=1)}
    description = {
        "version": adawac.__version__,
        "scan": {"title": base.path.resolve().name, **_place(base), "range": base.range},
        "layers": [
            {
                "title": title,
                **_place(layer),
                "values": layer.values,
                "voxels": layer.voxels,
                "background": layer.background,
            }
            for title, layer in zip(_titles([layer.path for layer in layers]), layers, strict=True)
        ],
        "classes": _classes(layers),
        "volumes": list(volumes),
        "start": _start(base, layers),
        "notes": notes,
    }
    text = json.dumps(description, allow_nan=False).encode()
    scene = {"scene.json": Resource(kind="application/json", body=text)}
    return Scene(resources={**_page(), **scene, **volumes}, description=description, notes=notes)


@cache
def _page() -> dict[str, Resource]:
    """Return the page's own files; nothing in them comes from the data."""
    package, report = files("adawac.viewer"), files("adawac.report")
    own = {one.name: one for one in (package / "page").iterdir()}
    own["niivue.umd.js"] = package / "vendor" / "niivue" / "niivue.umd.js"
    own["theme.js"] = report / "assets" / "theme.js"
    own[""] = own.pop("page.html")
    return {name: Resource(kind=_KINDS[Path(one.name).suffix], body=one.read_bytes()) for name, one in own.items()}


def _place(volume: Scan | LabelMap) -> dict[str, Any]:
    """Return a volume's grid: how to find the voxel at a place in the world, and how much of that a voxel is."""
    return {
        "shape": volume.shape,
        "inverse": np.linalg.inv(volume.affine).tolist(),
        "spacing": np.linalg.norm(volume.affine[:3, :3], axis=0).tolist(),
        "millilitres": _voxel_size(volume.affine),
    }


def _start(scan: Scan, layers: Sequence[LabelMap]) -> list[float]:
    """Return where to look first: the middle of what the first label map labels, or else of the scan."""
    affine, middle = scan.affine, tuple((side - 1) / 2 for side in scan.shape)
    for layer in layers:
        if layer.middle is not None:
            affine, middle = layer.affine, layer.middle
            break
    return [float(one) for one in (affine @ (*middle, 1))[:3]]


def _voxel_size(affine: Affine) -> float:
    return float(abs(np.linalg.det(affine[:3, :3]))) / 1000


def _classes(layers: Sequence[LabelMap]) -> list[dict[str, Any]]:
    """Return all classes of all layers. A value has one colour, whichever layer it is in."""
    background = {layer.background for layer in layers}
    values = sorted({value for layer in layers for value in (*layer.values, *layer.names)} - background)
    return [
        {
            "value": value,
            "name": " / ".join(dict.fromkeys(layer.names[value] for layer in layers if value in layer.names)),
            "colour": class_colour(number),
        }
        for number, value in enumerate(values, start=1)
    ]


def _titles(paths: Sequence[Path]) -> list[str]:
    """Return the files' names, with as many of the folders above as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    depth = 1
    while len({one[-depth:] for one in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(one[-depth:]) for one in parts]
