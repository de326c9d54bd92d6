"""A real server on a free port, in a thread of this process, over a backend that says what the test wants."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn

from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.server.app import State, create_app
from spola.server.connections import protocol
from spola.server.options import ServerOptions
from spola.server.serve import bind
from spola.server.shelf import Shelf
from support.running import TEXT, Running
from support.service import Parrot, parrot_service, tiny_file
from support.waiting import PATIENCE_S

__all__ = ["Answer", "ask", "serving"]


@contextmanager
def serving(
    folder: Path,
    *,
    names: tuple[str, ...] | Shelf = ("tiny",),
    server: ServerOptions | None = None,
    delay: float = 0.0,
    **engine: Any,
) -> Iterator[Running]:
    """A server with ``server``'s options; ``engine`` are fields of Options.

    A parrot answers, unless ``engine`` names another backend than null.
    """
    options = Options(**{"backend": "null", "max_model_len": 256, **engine})
    if options.backend == "null":
        service, parrot = parrot_service(folder, TEXT, delay=delay, options=options)
    else:
        service, parrot = build_service(str(tiny_file(folder)), options), Parrot()
    state = State(names, server)
    http_server = uvicorn.Server(
        uvicorn.Config(
            create_app(state), http=protocol(state.options), ws="none", lifespan="off", log_config=None
        )
    )
    # Signal handlers belong to the main thread.
    http_server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    ready = threading.Event()

    async def main() -> None:
        state.ready(service)
        ready.set()
        await http_server.serve(sockets=[listener])

    def run() -> None:
        with asyncio.Runner(loop_factory=state.options.new_loop) as runner:
            runner.run(main())

    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", service, parrot, state)
        finally:
            http_server.should_exit = True
            thread.join(PATIENCE_S)
            service.close()


class Answer:
    """``status``, ``headers`` (names in lower case) and ``body``, decoded where it is JSON."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.data = response.read()
        is_json = self.headers.get("content-type", "").startswith("application/json")
        self.body = json.loads(self.data) if is_json and self.data else None


def ask(
    running: Running,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    """One request on a connection of its own; a body makes it a POST."""
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers or {}))
        return Answer(connection.getresponse())
    finally:
        connection.close()
