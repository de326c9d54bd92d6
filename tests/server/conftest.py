"""A real server on a free port, over a backend that says what the test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from spola.runtime.config import Options
from spola.server.app import State, create_app
from spola.server.serve import bind
from support.running import TEXT, Running
from support.service import parrot_service


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
