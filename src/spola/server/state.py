"""State: what the routes of a server look at: its models, its callers, and whether it takes requests."""

from __future__ import annotations

from collections.abc import Sequence

from spola.runtime.desk import Desk, DeskLimits
from spola.runtime.service import Service
from spola.server.accounts import Accounts
from spola.server.errors import ApiError
from spola.server.metrics import render
from spola.server.options import ServerOptions
from spola.server.shelf import Book, Shelf

__all__ = ["State"]


class State:
    """``ready`` once the first model is loaded; ``leaving`` after a signal to stop.

    ``models`` are the names of the only model, or a shelf of several.
    """

    def __init__(self, models: str | Sequence[str] | Shelf, options: ServerOptions | None = None) -> None:
        if not isinstance(models, Shelf):
            models = Shelf([Book((models,) if isinstance(models, str) else tuple(models))])
        self.shelf = models
        self.shelf.limits = self._limits
        self.options = options or ServerOptions()
        self.accounts = Accounts(self.options.keys)
        self.leaving = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names of all models, the default one's first."""
        return tuple(name for book in self.shelf.books for name in book.names)

    @property
    def desk(self) -> Desk | None:
        """The desk of the default model, if it is loaded."""
        return self.shelf.books[0].desk

    @desk.setter
    def desk(self, desk: Desk | None) -> None:
        self.shelf.books[0].desk = desk

    def ready(self, service: Service) -> None:
        """The default model is ``service``, and requests are taken. Called on the event loop."""
        self.shelf.put(self.shelf.books[0], service)

    def check_open(self) -> None:
        """Raise ApiError 503 unless requests are taken now."""
        if self.leaving:
            raise ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
        desks = self.shelf.loaded
        if not desks:
            raise ApiError(503, "the model is loading", kind="server_error", retry_after=1)
        for desk in desks:
            if not desk.service.loop.alive:
                raise ApiError(503, "the engine has failed; restart the server", kind="server_error")

    def open_desk(self) -> Desk:
        """The desk of the default model, or of another that is loaded. Raises as ``check_open``."""
        self.check_open()
        return self.desk or self.shelf.loaded[0]

    def check_alive(self) -> None:
        """Raise ApiError 503 unless requests are taken and, where there are some, steps are made."""
        self.check_open()
        for desk in self.shelf.loaded:
            since = desk.live_since
            if since is None:
                continue
            last = max(since, desk.service.metrics.last_step_s or since)
            idle = desk.service.loop.clock() - last
            if idle > self.options.stall_s:
                said = f"there is work and no step has ended for {idle:.0f} s"
                raise ApiError(503, said, kind="server_error")

    @property
    def busy(self) -> bool:
        return any(desk.busy for desk in self.shelf.loaded)

    def abort_all(self) -> None:
        """End every request; whoever waits hears of it."""
        for desk in self.shelf.loaded:
            desk.abort_all()

    def close(self) -> None:
        """End the engines. Waits for the steps in flight."""
        for desk in self.shelf.loaded:
            desk.service.close()

    def metrics(self) -> bytes:
        """The page for Prometheus; of a model that is not loaded, what it had when it was."""
        return render(self.shelf.books, list(self.accounts.all.values()))

    def _limits(self, service: Service) -> DeskLimits:
        options = self.options
        return DeskLimits(
            live=service.config.max_seqs + options.max_queue,
            keys=max(1, len(options.keys.keys)),
            timeout_s=options.request_timeout_s,
            start_within_s=options.queue_timeout_s,
        )
