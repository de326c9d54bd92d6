"""A real server on a free port, over a backend that says what the test wants."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from support.running import TEXT, Running
from support.serving import serving
from support.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("model")) as running:
        yield running


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    """The openai package on ``running``."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


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
    until(lambda: not running.service.loop._engine.has_work)
