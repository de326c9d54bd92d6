"""What a server is told besides its models: who may call, how much at once, for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from spola.core.errors import ConfigError, MissingExtraError
from spola.server.keys import KeyRing
from spola.server.spans import Spans

__all__ = ["NewLoop", "ServerOptions", "event_loop"]

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Sizes in bytes, times in seconds.

    ``strict``: unknown fields of a request are refused. ``max_queue``: choices that may wait beside those
    that run; more get 429. ``queue_timeout_s``: how long one may wait for its turn, ``request_timeout_s``:
    until its end; then 503. ``drain_s``: how long running answers may go on after a signal.
    ``cors_origins``: web pages of these may call; ``*`` is every one. ``spans``: where requests are traced.
    ``new_loop`` makes the event loop.
    """

    strict: bool = False
    keys: KeyRing = field(default_factory=KeyRing)
    cors_origins: tuple[str, ...] = ()
    spans: Spans | None = None
    new_loop: NewLoop = asyncio.new_event_loop
    max_queue: int = 512
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    drain_s: float = 8.0
    max_body: int = 16 << 20
    max_header: int = 32 << 10
    max_depth: int = 64  # objects and lists inside each other in a body
    read_timeout_s: float = 30.0  # for the header of a request, and between two pieces of its body
    write_timeout_s: float = 120.0  # a client that reads nothing for so long is gone
    stall_s: float = 30.0  # work and no step for so long: not healthy

    def __post_init__(self) -> None:
        for origin in self.cors_origins:
            scheme, found, host = origin.partition("://")
            fine = scheme in ("http", "https") and host and not set(host) & set("/?# ")
            if origin != "*" and not (found and fine):
                raise ConfigError(
                    f"--cors-origin {origin!r}: write scheme and host, as https://chat.example.org, or *"
                )


def event_loop(name: str) -> NewLoop:
    """What makes an event loop of Python's ``asyncio`` or of ``uvloop``. Raises MissingExtraError."""
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        raise MissingExtraError("--event-loop uvloop needs uvloop: pip install 'spola[uvloop]'") from None
    made: NewLoop = uvloop.new_event_loop
    return made
