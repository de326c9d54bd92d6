"""A real server on a free port, over a backend that says what the test wants."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from spola.runtime.config import Options
from spola.runtime.service import Service
from spola.server.app import State, create_app
from spola.server.serve import bind
from support.service import Parrot, parrot_service

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
        with urllib.request.urlopen(self.url + path, data=data, timeout=20) as response:
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
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = Options(backend="null", max_model_len=256)
    service, parrot = parrot_service(tmp_path_factory.mktemp("model"), TEXT, options=options)
    listener = bind("127.0.0.1", 0)
    state = State("tiny")
    server = uvicorn.Server(
        uvicorn.Config(create_app(state), http="httptools", ws="none", lifespan="off", log_config=None)
    )
    # Signal handlers belong to the main thread.
    server.capture_signals = lambda: _Nothing()
    ready = threading.Event()

    async def main() -> None:
        state.ready(service)
        ready.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait(10)
    yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", service, parrot, state)
    server.should_exit = True
    thread.join(10)
    service.close()
    listener.close()


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture(autouse=True)
def unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Alive: after each test the server still answers as before, and nothing runs on."""
    yield
    if "running" not in request.fixturenames:
        return
    running: Running = request.getfixturevalue("running")
    running.parrot.delay, running.parrot.broken = 0.0, None
    assert running.get("/health") == (200, {"status": "ok"})
    status, body = running.post("/v1/completions", {"prompt": "control", "max_tokens": 200})
    assert (status, body["choices"][0]["text"]) == (200, TEXT)
    assert not running.service.loop._engine.has_work
