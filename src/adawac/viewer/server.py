"""A small server for this computer alone: it serves a fixed list of files below a secret path.

It listens on the loopback address only. Every path begins with a random token, so that neither other users of the
computer nor pages in the browser can guess one. The Host header must name the loopback, so that no other site's name
can be pointed at it (DNS rebinding). Paths are looked up, never joined to a folder.
"""

import logging
import os
import secrets
import shutil
import socket
import socketserver
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from adawac.errors import ConfigError

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A file that the server has.

    Attributes:
        kind: Its media type.
        body: Its bytes, or the file that holds them.
    """

    kind: str
    body: bytes | Path

    def open(self) -> tuple[BinaryIO, int]:
        """Return its content as a stream, and how many bytes that has."""
        if isinstance(self.body, bytes):
            return BytesIO(self.body), len(self.body)
        stream = self.body.open("rb")
        return stream, os.fstat(stream.fileno()).st_size


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
