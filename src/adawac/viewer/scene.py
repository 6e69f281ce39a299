"""Everything that the page needs: the files that the server has, and their description as plain data."""

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
from adawac.viewer.layers import ImageLayer, LabelLayer, Layer, read_image_layer, read_label_layer
from adawac.viewer.server import Resource

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
        resources: All files that the server has, by name.
        description: What the page shows, as plain data.
        notes: What a reader should know: volumes that were left out, grids that differ.
    """

    resources: dict[str, Resource]
    description: dict[str, Any]
    notes: tuple[str, ...]


def build_scene(scan: Path | str, labels: Iterable[Path | str] = ()) -> Scene:
    """Read a scan and its label maps."""
    base = read_image_layer(Path(scan))
    layers = [read_label_layer(Path(path), base) for path in labels]
    notes = (*base.notes, *(note for layer in layers for note in layer.notes))
    volumes = {f"volumes/0{base.ending}": base.resource}
    volumes |= {f"volumes/{number}.nii.gz": layer.resource for number, layer in enumerate(layers, start=1)}
    description = {
        "version": adawac.__version__,
        "scan": {"title": base.path.resolve().name, **_grid(base), "range": base.range},
        "layers": [
            {
                "title": title,
                **_grid(layer),
                **{name: getattr(layer, name) for name in ("values", "voxels", "background")},
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
    """Return the files of the page, none of which depends on the data."""
    package, report = files("adawac.viewer"), files("adawac.report")
    page = {file.name: file for file in (package / "page").iterdir()}
    page["niivue.umd.js"] = package / "vendor" / "niivue" / "niivue.umd.js"
    page |= {name: report / "assets" / name for name in ("theme.js", "theme.css")}
    page[""] = page.pop("page.html")
    return {name: Resource(kind=_KINDS[Path(file.name).suffix], body=file.read_bytes()) for name, file in page.items()}


def _grid(volume: Layer) -> dict[str, Any]:
    """Return a volume's grid: how to find the voxel at a point in the world, and a voxel's size."""
    return {
        "shape": volume.shape,
        "inverse": np.linalg.inv(volume.affine).tolist(),
        "spacing": np.linalg.norm(volume.affine[:3, :3], axis=0).tolist(),
        "millilitres": float(abs(np.linalg.det(volume.affine[:3, :3]))) / 1000,
    }


def _start(scan: ImageLayer, layers: Sequence[LabelLayer]) -> list[float]:
    """Return where to look first: the middle of what the first label map labels, or else of the scan."""
    starts = [(layer.affine, layer.middle) for layer in layers if layer.middle is not None]
    affine, middle = [*starts, (scan.affine, tuple((side - 1) / 2 for side in scan.shape))][0]
    return [float(coordinate) for coordinate in (affine @ (*middle, 1))[:3]]


def _classes(layers: Sequence[LabelLayer]) -> list[dict[str, Any]]:
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
    """Return the files' names, with as many folders as it takes to tell them apart."""
    folders = [path.resolve().parts for path in paths]
    depth = 1
    while len({parts[-depth:] for parts in folders}) < len(set(folders)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in folders]
