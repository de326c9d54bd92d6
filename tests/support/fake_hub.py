"""A hub in this process: model info, redirected downloads with ranges, and the faults that tests want."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

__all__ = ["FakeHub", "fake_hub"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """``repositories``: name -> file -> bytes; a file of more than 1000 bytes is one that the hub hashes.

    ``cut``: how many bytes the next download of a large file gets before its connection ends. ``lie``: state
    another SHA-256. ``status``: answer model info with it. ``requests``: what was asked, with ranges.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cut: int | None = None
    lie: bool = False
    status: int = 200
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Nothing on the console."""

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = unquote(self.path.split("?")[0])
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if path.startswith("/api/models/"):
                self._info(path.removeprefix("/api/models/").split("/revision/")[0])
            elif path.startswith("/cdn/"):
                self._data(*path.removeprefix("/cdn/").split("//"), body=body)
            elif "/resolve/" in path:
                self._resolve(*path.strip("/").split("/resolve/"), body=body)
            else:
                self._send(404, b"{}")

        def _info(self, repository: str) -> None:
            files = hub.repositories.get(repository)
            if hub.status != 200 or files is None:
                status = hub.status if hub.status != 200 else 404
                code = {401: "RepoNotFound", 404: "RepoNotFound", 403: "GatedRepo"}.get(status, "")
                self._send(status, b"{}", {"X-Error-Code": code} if code else {})
                return
            rows = []
            for name, data in files.items():
                row: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
                if len(data) > 1000:
                    sha = "f" * 64 if hub.lie else hashlib.sha256(data).hexdigest()
                    row["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
                rows.append(row)
            info = {"id": repository, "sha": COMMIT, "siblings": rows, "tags": [], "private": False}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def _resolve(self, repository: str, rest: str, *, body: bool) -> None:
            name = rest.split("/", 1)[1]
            data = hub.repositories.get(repository, {}).get(name)
            if data is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            elsewhere = hub.url.replace(
                "127.0.0.1", "localhost"
            )  # as the real one: data come from another host
            etag = hashlib.sha256(data).hexdigest()
            headers = {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(len(data)),
                "ETag": f'"{etag}"',
                "Location": f"{elsewhere}/cdn/{repository}//{name}",
            }
            self._send(302, b"", headers)

        def _data(self, repository: str, name: str, *, body: bool) -> None:
            data = hub.repositories[repository][name]
            start = 0
            given = self.headers.get("Range")
            if given:
                start = int(given.removeprefix("bytes=").split("-")[0])
            part = data[start:]
            headers = {"Accept-Ranges": "bytes"}
            if given:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_response(206 if given else 200)
            for key, value in {**headers, "Content-Length": str(len(part))}.items():
                self.send_header(key, value)
            self.end_headers()
            if not body:
                return
            if hub.cut is not None and len(data) > 1000:
                self.wfile.write(part[: hub.cut])
                hub.cut = None
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(part)

        def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign,assignment]
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
