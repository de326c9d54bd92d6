"""The models of a server: which are loaded, who asks for one that is not, and who makes room for it.

A model that is not loaded is loaded when it is asked for; if its memory is not free, the idle models that
were used longest ago are unloaded. One that works is never taken away. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spola.core.errors import SpolaError
from spola.engine.metrics import Metrics
from spola.runtime.desk import Desk, DeskLimits
from spola.runtime.service import Service
from spola.server.errors import ApiError
from spola.server.log import logger

__all__ = ["Book", "Shelf"]


@dataclass(slots=True)
class Book:
    """A model: ``names`` clients may call it by, ``build`` to load it, ``bytes`` that it takes once loaded.

    ``metrics`` outlive an unloading; they begin anew with the next loading. ``loads``: how often it was
    loaded. ``users``: requests on their way to the desk; it is not idle while there is one. ``adapters`` are
    chosen by name as the model is.
    """

    names: tuple[str, ...]
    build: Callable[[], Service] | None = None
    bytes: int = 0
    desk: Desk | None = None
    metrics: Metrics | None = None
    loads: int = 0
    load_s: float = 0.0
    used_s: float = 0.0
    users: int = 0
    adapters: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def known(self) -> tuple[str, ...]:
        return self.names + self.adapters


class Shelf:
    """``total``: bytes for all models that are loaded at the same time; None: everything fits."""

    def __init__(self, books: Sequence[Book], total: int | None = None) -> None:
        self.books = list(books)
        self.total = total
        self.limits: Callable[[Service], DeskLimits] = lambda service: DeskLimits()
        self._moving = asyncio.Lock()  # one model is loaded or unloaded at a time

    def book(self, name: str | None) -> Book:
        """The model that is called ``name``; the first one for None. Raises ApiError 404 naming all."""
        if name is None:
            return self.books[0]
        for book in self.books:
            if name in book.known:
                return book
        known = ", ".join(repr(one) for book in self.books for one in book.known)
        raise ApiError(
            404,
            f"there is no model {name[:100]!r}; this server has {known}",
            param="model",
            code="model_not_found",
        )

    @property
    def loaded(self) -> list[Desk]:
        return [book.desk for book in self.books if book.desk is not None]

    def put(self, book: Book, service: Service) -> Desk:
        """``service`` is the engine of ``book`` from now on."""
        book.desk, book.metrics = Desk(service, self.limits(service)), service.metrics
        book.adapters = service.config.adapters
        book.loads, book.load_s = book.loads + 1, service.load_s
        book.used_s = time.monotonic()
        return book.desk

    async def desk(self, book: Book) -> Desk:
        """The desk of ``book``, loaded first if it is not. Raises ApiError 503 when there is no room now."""
        book.used_s = time.monotonic()
        if book.desk is not None:
            return book.desk
        async with self._moving:
            if book.desk is None:
                await self._make_room(book)
                await self._load(book)
        assert book.desk is not None
        return book.desk

    async def _load(self, book: Book) -> None:
        if book.build is None:
            raise ApiError(503, "the model is loading", kind="server_error", retry_after=1)
        logger.info("loading %s", book.name)
        try:
            service = await asyncio.to_thread(book.build)
        except SpolaError as error:
            logger.error("%s cannot be loaded: %s", book.name, error)
            raise ApiError(
                503, f"{book.name} cannot be loaded now", kind="server_error", retry_after=30
            ) from None
        self.put(book, service)
        logger.info("loaded %s in %.1f s", book.name, service.load_s)

    async def _make_room(self, book: Book) -> None:
        """Unload idle models, the one used longest ago first, until ``book`` fits."""
        if self.total is None:
            return
        held = [one for one in self.books if one.desk is not None]
        idle = sorted(
            (one for one in held if one.desk and not one.desk.busy and not one.users),
            key=lambda one: one.used_s,
        )
        free = self.total - sum(one.bytes for one in held)
        going: list[Book] = []
        while free < book.bytes:
            if not idle:
                raise ApiError(
                    503,
                    f"there is no memory for {book.name} while other models work",
                    kind="server_error",
                    retry_after=5,
                )
            going.append(idle.pop(0))
            free += going[-1].bytes
        for one in going:
            desk, one.desk = one.desk, None
            assert desk is not None
            await asyncio.to_thread(desk.service.close)
            logger.info("unloaded %s: its memory is needed for %s", one.name, book.name)
