"""A small Hugging Face Hub over HTTP, in memory: repositories, commits, large files, and answers to what is wrong."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer(ThreadingHTTPServer):
    """`repositories` maps owner/name to its commits, (sha, {path: content}), the oldest first."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.large, self.gated = {}, {}, set()
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name, files):
        """Add a commit with these files beside those of the last one; return its hash."""
        commits = self.repositories.setdefault(name, [])
        content = {**(commits[-1][1] if commits else {}), **files}
        sha = hashlib.sha1(repr((len(commits), sorted(content.items()))).encode()).hexdigest()
        commits.append((sha, content))
        return sha

    def find(self, name, revision):
        """Return a commit by its hash or branch, or None."""
        commits = self.repositories[name]
        return commits[-1] if revision == "main" else next((c for c in commits if c[0] == revision), None)


@contextmanager
def serving():
    """Serve on a free port of this machine."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, data, status=200, headers=()):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for key, value in {"Content-Length": len(body), "Content-Type": "application/json", **dict(headers)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code):
        self.answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        for pattern, method in _ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                name = match.groupdict().get("name")
                if name is not None and name not in self.server.repositories:
                    return self.fail(404, "RepoNotFound")
                if name in self.server.gated:
                    return self.fail(403, "GatedRepo")
                return method(self, body, **match.groupdict())
        return self.fail(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    # -- reading ------------------------------------------------------------------------------------------------------

    def info(self, body, name, revision=None):
        commit = self.server.find(name, revision or "main")
        if commit is None:
            return self.fail(404, "RevisionNotFound")
        files = [{"rfilename": path} for path in commit[1]]
        return self.answer({"id": name, "modelId": name, "sha": commit[0], "private": False, "siblings": files})

    def tree(self, body, name, revision):
        commit = self.server.find(name, revision)
        if commit is None:
            return self.fail(404, "RevisionNotFound")
        return self.answer(
            [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in commit[1].items()
            ]
        )

    def file(self, body, name, revision, path):
        commit = self.server.find(name, revision)
        if commit is None or path not in commit[1]:
            return self.fail(404, "RevisionNotFound" if commit is None else "EntryNotFound")
        etag = hashlib.sha1(commit[1][path]).hexdigest()
        return self.answer(commit[1][path], headers={"ETag": f'"{etag}"', "X-Repo-Commit": commit[0]})

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(self, body):
        data = json.loads(body)
        name = "/".join(filter(None, (data.get("organization"), data["name"])))
        name = name if "/" in name else f"anna/{name}"
        self.server.commit(name, {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        self.answer({"url": f"{self.server.url}/{name}", "name": name, "id": name})

    def modes(self, body, name, revision):
        """Say which files are large: weights, as on the real Hub."""
        files = [file["path"] for file in json.loads(body)["files"]]
        self.answer(
            {
                "files": [
                    {
                        "path": path,
                        "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for path in files
                ]
            }
        )

    def batch(self, body, name):
        objects = [
            {
                "oid": item["oid"],
                "size": item["size"],
                "authenticated": True,
                "actions": {"upload": {"href": f"{self.server.url}/large/{item['oid']}", "header": {}}},
            }
            for item in json.loads(body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def put(self, body, oid):
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.large[oid] = body
        self.answer({})

    def add(self, body, name, revision):
        items = [json.loads(line) for line in body.splitlines() if line]
        files = {}
        for item in items:
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if item["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        sha = self.server.commit(name, files)
        self.answer({"commitOid": sha, "commitUrl": f"{self.server.url}/{name}/commit/{sha}", "success": True})

    def who(self, body):
        self.answer({"type": "user", "name": "anna", "auth": {"type": "access_token"}, "orgs": []})

    def valid(self, body):
        self.answer({"errors": [], "warnings": []})


_NAME = r"(?P<name>[^/]+/[^/]+?)"
_ROUTES = [
    (rf"GET /api/models/{_NAME}(/revision/(?P<revision>.+))?", _Handler.info),
    (rf"GET /api/models/{_NAME}/tree/(?P<revision>[^/]+)", _Handler.tree),
    (rf"(?:GET|HEAD) /{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.file),
    (r"POST /api/repos/create", _Handler.create),
    (rf"POST /api/models/{_NAME}/preupload/(?P<revision>[^/]+)", _Handler.modes),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    (r"PUT /large/(?P<oid>\w+)", _Handler.put),
    (rf"POST /api/models/{_NAME}/commit/(?P<revision>[^/]+)", _Handler.add),
    (r"GET /api/whoami-v2", _Handler.who),
    (r"POST /api/validate-yaml", _Handler.valid),
]
