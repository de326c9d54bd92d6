"""A server that is running, as tests talk to it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from spola.runtime.service import Service
from spola.server.app import State
from support.service import Parrot
from support.waiting import PATIENCE_S

__all__ = ["TEXT", "Running"]

TEXT = "the cat sat on the mat 歪 😸 and then"


@dataclass
class Running:
    url: str
    service: Service
    parrot: Parrot
    state: State

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and decoded body; ``body`` is sent as it is when it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._open(urllib.request.Request(self.url + path, data=data, method="POST"))

    def get(self, path: str) -> tuple[int, Any]:
        return self._open(urllib.request.Request(self.url + path))

    def lines(self, path: str, body: Any) -> list[str]:
        """The lines of a stream, without the empty ones between them."""
        data = json.dumps(body).encode()
        with urllib.request.urlopen(self.url + path, data=data, timeout=PATIENCE_S) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            return [line.decode().rstrip("\n") for line in response if line.strip()]

    def chunks(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The events of a stream that ends well."""
        lines = self.lines(path, {**body, "stream": True})
        assert all(line.startswith("data: ") for line in lines)
        assert lines.count("data: [DONE]") == 1
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]

    @staticmethod
    def _open(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
