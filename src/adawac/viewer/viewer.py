"""A scan with its label maps as a page: `view` opens it in the browser, `serve` only makes it available."""

import json
import logging
import os
import secrets
import shutil
import socket
import socketserver
import threading
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import adawac
from adawac.data.sources.source import COLOUR, show_value
from adawac.data.task import class_colour
from adawac.errors import ConfigError
from adawac.figures.display_names import folder_names
from adawac.viewer.layers import ImageLayer, LabelLayer, Layer, Resource, read_image_layer, read_label_layer

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


# -- the server -------------------------------------------------------------------------------------------------------

# It listens on the loopback address only. Every path begins with a random token, so that neither other users of the
# computer nor pages in the browser can guess one. The Host header must name the loopback, so that no other site's name
# can be pointed at it (DNS rebinding). Paths are looked up, never joined to a folder.
_ADDRESS = "127.0.0.1"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LoopbackServer(ThreadingHTTPServer):
    """Answers `/TOKEN/NAME` for the given names, on this computer only.

    Args:
        resources: What there is, by name; `""` is the page itself.
        port: Where to listen; 0 takes a free port.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let another program take the port over

    def __init__(self, resources: Mapping[str, Resource], port: int = 0):
        self.resources = dict(resources)
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Expected a free port of this computer, but got {port} ({error}). "
                "Give another --port, or leave it out to take any free one."
            ) from error
        self.hosts = {f"{name}:{self.server_port}".encode() for name in (_ADDRESS, "localhost")}

    def server_bind(self) -> None:
        """Bind without looking up the computer's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _ADDRESS, self.server_address[1]

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_ADDRESS}:{self.server_port}/{self.token}/"

    def find(self, path: str) -> Resource | None:
        """Return what lies at a path, which must begin with the token."""
        start, token, name = [*path.split("/", 2), "", ""][:3]
        known = secrets.compare_digest(token.encode(), self.token.encode())
        return self.resources.get(name) if known and not start and path.count("/") > 1 else None

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Note that a connection broke: browsers close them when a page is left."""
        log.debug("a connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds of silence, after which a connection is closed

    def do_GET(self) -> None:
        if self.headers.get("Host", "").encode() not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        resource = self.server.find(self.path)
        if resource is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            stream, length = resource.open()
        except OSError:
            self.send_error(HTTPStatus.GONE)  # the file was moved since the server was started
            return
        with stream:
            self._begin(HTTPStatus.OK, resource.kind, length)
            if self.command != "HEAD":
                shutil.copyfileobj(stream, self.wfile)

    do_HEAD = do_GET  # noqa: N815

    def _begin(self, status: int, kind: str, length: int, **more: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **more, "Content-Type": kind, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the status alone: nothing of the request comes back."""
        allow = {}
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what the base class says to POST and all other methods
            code, allow = HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"}
        body = f"{code} {HTTPStatus(code).phrase}\n".encode()
        self.close_connection = True
        self._begin(code, "text/plain; charset=utf-8", len(body), Connection="close", **allow)
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of the server, without the versions of what it is made of."""
        return "adawac"

    def log_message(self, format: str, *args: Any) -> None:
        """Write requests to the log."""
        log.debug(format, *args)
