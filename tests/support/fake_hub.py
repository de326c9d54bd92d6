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

__all__ = ["FakeHub", "Request", "fake_hub"]

LARGE = 1000  # bytes from which on a file is one that the hub keeps by its SHA-256


@dataclass(frozen=True)
class Request:
    """One that came: ``method``, decoded ``path``, and the headers Range and Authorization."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """``repositories``: name -> file -> bytes.

    ``cuts``: how many bytes the next downloads of a large file get before their connections end. ``slow``:
    seconds between pieces of 64 KB. ``lie``: state another SHA-256. ``status``: answer model info with it.
    ``busy``: so many downloads with 503 first. ``gated``: the token without which nothing is given.
    ``ranges``: whether they are obeyed. ``more``: bytes too many. ``requests``: what was asked.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    slow: float = 0.0
    lie: bool = False
    status: int = 200
    busy: int = 0
    gated: str | None = None
    ranges: bool = True
    more: bytes = b""
    requests: list[Request] = field(default_factory=list)
    served: int = 0

    def commit(self, repository: str) -> str:
        """Forty digits that change with the files."""
        state = hashlib.sha1(repr(sorted(self.repositories[repository].items())).encode())
        return state.hexdigest()

    def downloads(self) -> list[Request]:
        return [row for row in self.requests if row.path.startswith("/cdn/")]

    def reset(self) -> None:
        blank = FakeHub(url=self.url)
        self.__dict__.update(blank.__dict__)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Nothing on the console."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(self.path.split("?")[0])
            given = self.headers.get("Authorization")
            hub.requests.append(Request(self.command, path, self.headers.get("Range"), given))
            if path.startswith("/cdn/"):
                self._data(*path.removeprefix("/cdn/").split("//"))
            elif hub.gated and given != f"Bearer {hub.gated}":
                self._send(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "log in"})
            elif path.startswith("/api/models/"):
                self._info(path.removeprefix("/api/models/").split("/revision/")[0])
            elif "/resolve/" in path:
                self._resolve(*path.strip("/").split("/resolve/"))
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
                sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                row: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": sha1}
                if len(data) > LARGE:
                    sha = "f" * 64 if hub.lie else hashlib.sha256(data).hexdigest()
                    row["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
                rows.append(row)
            info = {"id": repository, "sha": hub.commit(repository), "siblings": rows, "tags": []}
            self._send(
                200, json.dumps(info | {"private": False}).encode(), {"Content-Type": "application/json"}
            )

        def _resolve(self, repository: str, rest: str) -> None:
            name = rest.split("/", 1)[1]
            data = hub.repositories.get(repository, {}).get(name)
            if data is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            # As the real one: data come from another host, where the ETag is no hash of the content.
            elsewhere = hub.url.replace("127.0.0.1", "localhost")
            headers = {
                "X-Repo-Commit": hub.commit(repository),
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                "X-Xet-Hash": "e" * 64,
                "Location": f"{elsewhere}/cdn/{repository}//{name}",
            }
            self._send(302, b"", headers)

        def _data(self, repository: str, name: str) -> None:
            data = hub.repositories[repository][name]
            if hub.busy:
                hub.busy -= 1
                self._send(503, b"later")
                return
            given = self.headers.get("Range") if hub.ranges else None
            start = int(given.removeprefix("bytes=").split("-")[0]) if given else 0
            if given and start >= len(data):
                self._send(416, b"")
                return
            part = data[start:] + hub.more
            headers = {"Accept-Ranges": "bytes", "ETag": '"another"', "Content-Length": str(len(part))}
            if given:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_response(206 if given else 200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            cut = hub.cuts.pop(0) if hub.cuts and len(data) > LARGE else None
            self._write(part[:cut])
            if cut is not None:
                self.close_connection = True

        def _write(self, part: bytes) -> None:
            for at in range(0, len(part), 1 << 16):
                self.wfile.write(part[at : at + (1 << 16)])
                hub.served += len(part[at : at + (1 << 16)])
                if hub.slow and stop.wait(hub.slow):
                    return

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
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
