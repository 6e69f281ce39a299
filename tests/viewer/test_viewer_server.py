"""The viewer's server: what it was given, with its token, on this computer, and nothing else."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from adawac.errors import ConfigError
from adawac.viewer import Viewer, serve
from adawac.viewer.viewer import LoopbackServer, Resource
from tests.viewer.viewed_scans import block, make_scan, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_scan(folder / "scan.nii.gz")
    save(folder / "truth.nii.gz", block())
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with serve(folder / "scan.nii.gz", [folder / "truth.nii.gz"]) as opened:
        yield opened


def ask(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> Any:
    """Send a request just as it is written, and return status, headers and body."""
    where = urlsplit(viewer.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def root(viewer: Viewer) -> str:
    return urlsplit(viewer.url).path


def test_it_answers_the_page_and_each_of_its_files(viewer: Viewer):
    status, headers, page = ask(viewer, root(viewer))
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    for name in ("viewer.js", "viewer.css", "niivue.umd.js", "theme.js", "theme.css", "icon.svg"):
        assert f'"{name}"'.encode() in page
        assert ask(viewer, root(viewer) + name)[0] == 200
    scene = json.loads(ask(viewer, root(viewer) + "scene.json")[2])
    assert scene["volumes"] == ["volumes/0.nii.gz", "volumes/1.nii.gz"]


def test_the_scan_is_the_file_byte_for_byte(viewer: Viewer, folder: Path):
    status, headers, body = ask(viewer, root(viewer) + "volumes/0.nii.gz")
    assert status == 200
    assert body == (folder / "scan.nii.gz").read_bytes()
    assert "Content-Encoding" not in headers  # the browser must not unpack it


def test_head_gives_the_headers_alone(viewer: Viewer, folder: Path):
    status, headers, body = ask(viewer, root(viewer) + "volumes/0.nii.gz", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == (folder / "scan.nii.gz").stat().st_size


@pytest.mark.parametrize("path", ["", "volumes/0.nii.gz", "nothing"])
def test_headers_allow_nothing_from_outside(viewer: Viewer, path: str):
    _, headers, _ = ask(viewer, root(viewer) + path)
    policy = {
        directive.split()[0]: directive.split()[1:] for directive in headers["Content-Security-Policy"].split(";")
    }
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["connect-src"] == ["'self'"]
    assert not any(
        "http" in source or "unsafe" in source or "*" in source for sources in policy.values() for source in sources
    )
    assert policy["frame-ancestors"] == ["'none'"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    for name in ("Opener", "Resource"):
        assert headers[f"Cross-Origin-{name}-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/volumes/0.nii.gz",
        "/scene.json",
        "/wrong/scene.json",
        "/{token}",
        "/{token}x/scene.json",
        "/{short}/scene.json",
        "/{upper}/scene.json",
        "/{encoded}/scene.json",
        "//scene.json",
        "scene.json",
        "*",
        "/ä/scene.json".encode().decode("latin-1"),
    ],
)
def test_nothing_without_the_token(viewer: Viewer, path: str):
    token = root(viewer).strip("/")
    encoded = f"%{ord(token[0]):02x}{token[1:]}"
    filled = path.format(token=token, short=token[:-1], upper=token.swapcase(), encoded=encoded)
    connection = socket.create_connection((urlsplit(viewer.url).hostname, urlsplit(viewer.url).port), timeout=10)
    with connection:  # by hand: http.client refuses some of these paths
        host = urlsplit(viewer.url).netloc
        connection.sendall(f"GET {filled} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        answer = connection.makefile("rb").read()
    assert answer.split()[1] == b"404"
    assert answer.endswith(b"\r\n\r\n404 Not Found\n")


@pytest.mark.parametrize(
    "path",
    [
        "secret.txt",
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "%2e%2e%2fsecret.txt",
        "..\\secret.txt",
        "volumes/../scene.json",
        "./scene.json",
        "/scene.json",
        "{folder}/secret.txt",
        "/{folder}/secret.txt",
        "file://{folder}/secret.txt",
        "volumes/scan.nii.gz",
        "volumes/",
        "volumes",
        "volumes/2.nii.gz",
        "volumes/0.nii",
        "volumes/0.nii.gz/",
        "volumes/0.nii.gz%00",
        "volumes/0.nii.gz?x=1",
        "page.html",
        "server.py",
        "../server.py",
        "vendor/niivue/niivue.umd.js",
    ],
)
def test_no_path_leads_outside(viewer: Viewer, folder: Path, path: str):
    status, _, body = ask(viewer, root(viewer) + path.format(folder=folder))
    assert (status, body) == (404, b"404 Not Found\n")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1:{port}.x", ""]
)
def test_another_host_name_is_refused(viewer: Viewer, host: str):
    status, _, body = ask(viewer, root(viewer), Host=host.format(port=urlsplit(viewer.url).port))
    assert (status, body) == (421, b"421 Misdirected Request\n")


def test_localhost_is_this_computer(viewer: Viewer):
    assert ask(viewer, root(viewer), Host=f"localhost:{urlsplit(viewer.url).port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "<script>"])
def test_it_can_only_be_read(viewer: Viewer, method: str):
    status, headers, body = ask(viewer, root(viewer), method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert b"script" not in body


def test_it_listens_on_the_loopback_only(viewer: Viewer):
    port = urlsplit(viewer.url).port
    assert urlsplit(viewer.url).hostname == "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # no packet is sent; it tells which address this computer would use
            address = probe.getsockname()[0]
    except OSError:
        pytest.skip("this computer has no other address than the loopback")
    if address.startswith("127."):
        pytest.skip("this computer has no other address than the loopback")
    with pytest.raises(OSError), socket.create_connection((address, port), timeout=3):  # noqa: PT011  refused or no answer
        pass


def test_every_server_has_a_token_of_its_own():
    with LoopbackServer({}) as first, LoopbackServer({}) as second:
        assert first.token != second.token
        assert len(first.token) >= 32
        assert first.server_port != second.server_port


def test_port_in_use_is_an_error(viewer: Viewer, folder: Path):
    port = urlsplit(viewer.url).port
    with pytest.raises(ConfigError, match=rf"Expected a free port .* but got {port} .*Give another --port"):
        serve(folder / "scan.nii.gz", port=port or 0)
    with pytest.raises(ConfigError, match="from 0 to 65535, but got 65536"):
        serve(folder / "scan.nii.gz", port=65536)


def test_a_file_that_was_removed_is_gone(tmp_path: Path):
    with serve(make_scan(tmp_path / "scan.nii")) as opened:
        (tmp_path / "scan.nii").unlink()
        assert ask(opened, root(opened) + "volumes/0.nii")[0] == 410
        assert ask(opened, root(opened))[0] == 200


def test_a_closed_viewer_answers_no_more(folder: Path):
    with serve(folder / "scan.nii.gz") as opened:
        assert ask(opened, root(opened))[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(opened, root(opened))


def test_a_resource_can_be_bytes_or_a_file(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"abc")
    for body in (b"abc", tmp_path / "file"):
        stream, length = Resource(kind="text/plain", body=body).open()
        with stream:
            assert (stream.read(), length) == (b"abc", 3)
