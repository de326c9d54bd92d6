"""Run the server: bind the port, load the model beside it, leave cleanly on a signal.

The port is taken before any weight is read, so that a second server fails at once. SIGTERM and SIGINT let
running answers finish for some seconds, then end them with an error event; a second signal does so now.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from spola.core.errors import ConfigError, SpolaError
from spola.runtime.service import Service
from spola.server.app import State, create_app
from spola.server.connections import protocol
from spola.server.errors import ApiError
from spola.server.options import ServerOptions
from spola.server.shelf import Shelf

__all__ = ["bind", "check_host", "serve"]

BACKLOG = 2048
M_ARENA_MAX = -8  # glibc's malloc.h

_Build = Callable[[], Service]
_Ready = Callable[[str, Service], None]
_Say = Callable[[str], None]


def check_host(host: str, *, keys: bool, no_auth: bool) -> None:
    """Refuse to be reachable from other machines without keys. Raises ConfigError."""
    if keys and no_auth:
        raise ConfigError("--no-auth is for a server without API keys, and there are some; leave one out")
    if keys or no_auth or host == "localhost":
        return
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ConfigError(
            f"--host {host} lets other machines in and there are no API keys; give --keys FILE or "
            "SPOLA_API_KEY, use 127.0.0.1, or --no-auth if everybody who can reach it may use it"
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError saying what holds the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None
    return listener


def serve(
    listener: socket.socket,
    models: Sequence[str] | Shelf,
    build: _Build,
    ready: _Ready,
    say: _Say,
    options: ServerOptions | None = None,
) -> int:
    """Serve on ``listener`` until a signal; ``build`` loads the model. Gives the process's exit code.

    ``models`` are the names of the model, or a shelf whose first book ``build`` loads. ``ready`` is called
    with the API's address and the service once requests are taken.

    Raises SpolaError when the model cannot be loaded.
    """
    _allow_many_connections()
    _share_arenas()
    state = State(models, options)
    with asyncio.Runner(loop_factory=state.options.new_loop) as runner:
        return runner.run(_Running(listener, state, build, ready, say).run())


def _allow_many_connections() -> None:
    """As many open files as this process may have: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems name a limit and allow less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _share_arenas() -> None:
    """Let threads share two heaps of the C library: one for each keeps what it once needed for ever."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before streams are told."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Running:
    def __init__(
        self, listener: socket.socket, state: State, build: _Build, ready: _Ready, say: _Say
    ) -> None:
        self._listener = listener
        self._build = build
        self._ready = ready
        self._say = say
        self._state = state
        self._code = 0
        self._failed: SpolaError | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._preloading: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            create_app(self._state),
            http=protocol(state.options),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)
        loaded: asyncio.Future[Service] = loop.create_future()
        # A daemon thread, so that a signal while loading need not wait for it.
        loader = threading.Thread(target=self._load, args=(loop, loaded), name="spola-load", daemon=True)
        loader.start()
        ready = asyncio.create_task(self._when_loaded(loaded))
        await self._server.serve(sockets=[self._listener])
        if not loaded.done():
            self._quit_while_loading()
        await ready
        if self._preloading is not None:
            self._preloading.cancel()
        await asyncio.to_thread(self._state.close)
        if self._failed is not None:
            raise self._failed
        return self._code

    def _load(self, loop: asyncio.AbstractEventLoop, loaded: asyncio.Future[Service]) -> None:
        try:
            service = self._build()
        except BaseException as error:
            loop.call_soon_threadsafe(loaded.set_exception, error)
        else:
            loop.call_soon_threadsafe(loaded.set_result, service)

    async def _when_loaded(self, loaded: asyncio.Future[Service]) -> None:
        try:
            service = await loaded
        except SpolaError as error:
            self._failed = error
            self._server.should_exit = True
        except BaseException:
            self._server.should_exit = True
            raise
        else:
            self._state.ready(service)
            gc.freeze()  # what was loaded stays: no collection needs to look at it again
            host, port = self._listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._ready(f"http://{shown}:{port}/v1", service)
            self._preloading = asyncio.create_task(self._preload())

    async def _preload(self) -> None:
        """Load the other models too, if all fit at the same time."""
        shelf = self._state.shelf
        if shelf.total is not None and sum(book.bytes for book in shelf.books) > shelf.total:
            return
        for book in shelf.books[1:]:
            with contextlib.suppress(ApiError):  # it is in the log, and told again to whoever asks for it
                await shelf.desk(book)

    def _signal(self, number: signal.Signals) -> None:
        self._code = 130 if number == signal.SIGINT else 0
        self._state.leaving = True
        if not self._state.busy or self._leaving is not None:
            self._state.abort_all()
            self._server.should_exit = True
            return
        drain = self._state.options.drain_s
        self._say(f"stopping: running answers have {drain:g} s; a second signal ends them now")
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Let running answers end for a while, then end them."""
        end = asyncio.get_running_loop().time() + self._state.options.drain_s
        while self._state.busy and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        self._state.abort_all()
        self._server.should_exit = True

    def _quit_while_loading(self) -> None:
        # The loader may be deep in a read or in packing; there is nothing to save, and it could take long.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)
