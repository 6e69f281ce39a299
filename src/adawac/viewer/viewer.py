"""`view` opens a scan in the browser; `serve` only makes it available at an address."""

import logging
import threading
import webbrowser
from collections.abc import Iterable
from pathlib import Path

from adawac.errors import ConfigError
from adawac.viewer.scene import Scene, build_scene
from adawac.viewer.server import LoopbackServer

log = logging.getLogger(__name__)


class Viewer:
    """Serves a scan to the browser until it is closed. Use it in a `with` block.

    Args:
        scene: What is shown.
        port: Where to listen; 0 takes a free port.

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

    def __enter__(self) -> "Viewer":
        return self

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
    """Show a scan with its label maps in the browser, until Ctrl-C.

    Args:
        scan: A NIfTI file, or a DICOM series (its folder, or one of its files).
        labels: NIfTI label maps to lay over it: ground truth, predictions.
        port: Where to listen; 0 takes a free port.
        browser: Open the browser; otherwise the address is in the log only.
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
