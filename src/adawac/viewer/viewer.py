"""A scan with its label maps as a page: `view` opens it in the browser, `serve` only makes it available."""

import json
import logging
import threading
import webbrowser
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import adawac
from adawac.data.sources.source import COLOUR, show_value
from adawac.data.task import class_colour
from adawac.errors import ConfigError
from adawac.figures.display_names import folder_names
from adawac.viewer.layers import ImageLayer, LabelLayer, Layer, read_image_layer, read_label_layer
from adawac.viewer.server import LoopbackServer, Resource

log = logging.getLogger(__name__)

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
        "scan": {"title": base.path.resolve().name, **_grid(base), "range": base.range, "picture": base.picture},
        "layers": [
            {
                "title": title,
                **_grid(layer),
                **{name: getattr(layer, name) for name in ("values", "voxels", "background")},
            }
            for title, layer in zip(folder_names([layer.path for layer in layers]), layers, strict=True)
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
    """Return all classes of all layers. A value has one colour, whichever layer it is in: its own, if it is one."""
    background = {layer.background for layer in layers}
    values = sorted({value for layer in layers for value in (*layer.values, *layer.names)} - background)
    return [
        {
            "value": value,
            "name": " / ".join(dict.fromkeys(layer.names[value] for layer in layers if value in layer.names))
            or (show_value(value) if value >= COLOUR else ""),
            "colour": show_value(value) if value >= COLOUR else class_colour(number),
        }
        for number, value in enumerate(values, start=1)
    ]


class Viewer(AbstractContextManager["Viewer"]):
    """Serves a scan to the browser until it is closed. Use it in a `with` block.

    Attributes:
        url: The address of the page, which works on this computer only.
        notes: What a reader should know: volumes that were left out, grids that differ.
    """

    def __init__(self, scene: Scene, port: int = 0):
        self._server = LoopbackServer(scene.resources, port)
        self.url, self.notes = self._server.url, scene.notes
        self._thread = threading.Thread(target=self._server.serve_forever, name="adawac-viewer", daemon=True)
        self._thread.start()

    def open_browser(self) -> None:
        """Show the page in the user's browser."""
        try:
            opened = webbrowser.open(self.url)
        except (webbrowser.Error, OSError):
            opened = False
        if not opened:
            raise ConfigError(
                "Expected a browser on this computer, but found none. Run it again with --no-browser and open the "
                "address that it prints; from another computer, forward the port (ssh -L PORT:127.0.0.1:PORT)."
            )

    def wait(self) -> None:
        """Return when the viewer is closed, or raise `KeyboardInterrupt`."""
        while self._thread.is_alive():
            self._thread.join(0.5)  # with a limit, so that Ctrl-C works on every system

    def close(self) -> None:
        """Stop serving; the page keeps what it has loaded."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(scan: Path | str, labels: Iterable[Path | str] = (), *, port: int = 0) -> Viewer:
    """Serve a scan with its label maps at an address of this computer, and return at once.

    Args:
        scan: A NIfTI file, or a DICOM series (its folder, or one of its files).
        labels: NIfTI label maps to lay over it: ground truth, predictions.
        port: Where to listen; 0 takes a free port.
    """
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"Expected a port from 0 to 65535, but got {port}. Leave it out to take any free one.")
    return Viewer(build_scene(scan, labels), port)


def view(scan: Path | str, labels: Iterable[Path | str] = (), *, port: int = 0, browser: bool = True) -> None:
    """Show a scan with its label maps in the browser, until Ctrl-C; the arguments are those of `serve`.

    Without `browser`, none is opened, and the address is in the log only.
    """
    with serve(scan, labels, port=port) as viewer:
        for note in viewer.notes:
            log.warning("%s", note)
        log.info("%s", viewer.url)
        if browser:
            viewer.open_browser()
        try:
            viewer.wait()
        except KeyboardInterrupt:
            log.info("closed")
