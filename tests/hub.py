"""A local server in place of the Hugging Face hub."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
JSON = {"Content-Type": "application/json"}
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Hub(http.server.ThreadingHTTPServer):
    """Speaks the few words of the hub's protocol that one dataset needs."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        self.digests = {k: hashlib.sha256(v).hexdigest() for k, v in self.files.items()}
        git = {k: b"blob %d\0" % len(v) + v for k, v in self.files.items()}
        self.blobs = {k: hashlib.sha1(v).hexdigest() for k, v in git.items()}
        self.sizes = {k: len(v) for k, v in self.files.items()}
        self.downloads: list[str] = []
        self.cut: dict[str, int] = {}  # name -> bytes after which the connection breaks, once
        self.ranges: list[tuple[str, str]] = []
        self.listed = True  # whether it gives the tree of files, which comes before any file
        self.small: set[str] = set()  # files that are not in LFS: the hub gives git's id alone


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply(body=True)

    def do_HEAD(self):
        self.reply(body=False)

    def reply(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if f"/tree/{COMMIT}" in path and self.server.listed:
            return self.send(json.dumps(self.tree()).encode(), body, JSON)
        if path.startswith("/api/datasets/") and "/tree/" not in path:
            siblings = [self.sibling(name) for name in self.server.digests]
            content = {"_id": "1", "id": "made/up", "sha": COMMIT, "siblings": siblings}
            return self.send(json.dumps(content).encode(), body, JSON)
        name = path.split(f"/resolve/{COMMIT}/")[-1]
        if name not in self.server.files:
            self.send_response(404)
            return self.end_headers()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.server.digests[name]}"'}
        content, first = self.server.files[name], 0
        if asked := self.headers.get("Range"):
            self.server.ranges.append((name, asked))
            first = int(asked.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        elif body:
            self.server.downloads.append(name)
        some = self.server.cut.pop(name, None) if body else None
        return self.send(content[first:], body, headers, 206 if asked else 200, some)

    def tree(self) -> list[dict]:
        server, entries = self.server, []
        for name, digest in server.digests.items():
            entry = {"type": "file", "path": name, "oid": server.blobs[name]}
            entry["size"] = server.sizes[name]
            if name not in server.small:
                entry["lfs"] = {"oid": digest, "size": server.sizes[name], "pointerSize": 130}
            entries.append(entry)
        return entries

    def sibling(self, name: str) -> dict:
        server = self.server
        sibling = {"rfilename": name, "size": server.sizes[name], "blobId": server.blobs[name]}
        if name not in server.small:
            digest = server.digests[name]
            sibling["lfs"] = {"sha256": digest, "size": server.sizes[name], "pointerSize": 130}
        return sibling

    def send(
        self, content: bytes, body: bool, headers: dict[str, str], status=200, some=None
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:some])


@contextlib.contextmanager
def serving(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a folder as the one dataset of the hub that the client is sent to."""
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()
