"""The web application: routes, and the states of a server (loading, ready, leaving).

Builds no engine and opens no socket; that is ``server.serve``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from spola import __version__
from spola.core.errors import SpolaError
from spola.runtime.desk import Desk, Limits
from spola.runtime.service import Service
from spola.server.asks import Terms
from spola.server.body import LARGE, model_of, read_body
from spola.server.embeddings import embeddings
from spola.server.errors import ApiError, error_response, from_spola, internal_error, json_response
from spola.server.generate import chat_completions, completions
from spola.server.ledger import Accounts
from spola.server.live import live
from spola.server.messages import count_tokens, messages
from spola.server.metrics import CONTENT_TYPE, render
from spola.server.options import ServerOptions
from spola.server.responses import responses
from spola.server.shield import Shield
from spola.server.tokens import detokenize, tokenize
from spola.server.visit import visit_of
from spola.server.web import page_routes

__all__ = ["State", "create_app"]

_Handler = Callable[[Request], Awaitable[Response]]
_Endpoint = Callable[[Desk, Terms, Request, bytes], Awaitable[Response]]

_ENDPOINTS: dict[str, _Endpoint] = {
    "/v1/completions": completions,
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/v1/messages/count_tokens": count_tokens,
    "/v1/embeddings": embeddings,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}


class State:
    """What the routes look at. ``ready`` once the model is loaded; ``leaving`` after a signal to stop.

    ``names`` are what clients may call the model, the first being its own.
    """

    def __init__(self, names: str | Sequence[str], options: ServerOptions | None = None) -> None:
        self.names = (names,) if isinstance(names, str) else tuple(names)
        self.options = options or ServerOptions()
        self.accounts = Accounts(self.options.keys)
        self.desk: Desk | None = None
        self.leaving = False
        self.created = int(time.time())

    def ready(self, service: Service) -> None:
        """Serve ``service`` from now on. Called on the event loop."""
        options = self.options
        limits = Limits(
            live=service.config.max_seqs + options.max_queue,
            keys=max(1, len(options.keys.keys)),
            timeout_s=options.request_timeout_s,
            start_within_s=options.queue_timeout_s,
        )
        self.desk = Desk(service, limits)

    def open_desk(self) -> Desk:
        """The desk, if requests are taken now; else ApiError 503."""
        if self.leaving:
            raise ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
        if self.desk is None:
            raise ApiError(503, "the model is loading", kind="server_error", retry_after=1)
        if not self.desk.service.loop.alive:
            raise ApiError(503, "the engine has failed; restart the server", kind="server_error")
        return self.desk

    @property
    def adapters(self) -> tuple[str, ...]:
        """Adapters of the model, which requests choose by name as they do the model."""
        return () if self.desk is None else self.desk.service.config.adapters

    @property
    def known(self) -> tuple[str, ...]:
        return self.names + self.adapters

    def metrics(self) -> bytes:
        """The page for Prometheus; while the model loads, without the engine's part."""
        services = {} if self.desk is None else {self.names[0]: self.desk.service}
        return render(services, list(self.accounts.all.values()))

    def check_name(self, name: str) -> None:
        """Raise ApiError 404 for a name that no model here has."""
        if name not in self.known:
            known = ", ".join(repr(one) for one in self.known)
            raise ApiError(
                404,
                f"there is no model {name[:100]!r}; this server has {known}",
                param="model",
                code="model_not_found",
            )

    def check_alive(self) -> None:
        """Raise ApiError 503 unless requests are taken and, where there are some, steps are made."""
        desk = self.open_desk()
        since = desk.live_since
        if since is None:
            return
        last = max(since, desk.service.metrics.last_step_s or since)
        idle = desk.service.loop.clock() - last
        if idle > self.options.stall_s:
            raise ApiError(503, f"there is work and no step has ended for {idle:.0f} s", kind="server_error")


def create_app(state: State) -> ASGIApp:
    """The application over ``state``."""

    async def health(request: Request) -> Response:
        state.check_alive()
        return json_response({"status": "ok"})

    async def version(request: Request) -> Response:
        return json_response({"version": __version__})

    async def models(request: Request) -> Response:
        state.open_desk()
        return json_response({"object": "list", "data": [_model(state, name) for name in state.known]})

    async def model(request: Request) -> Response:
        state.open_desk()
        state.check_name(request.path_params["name"])
        return json_response(_model(state, request.path_params["name"]))

    async def engine_live(request: Request) -> Response:
        return await live(state.open_desk().service, request)

    async def metrics(request: Request) -> Response:
        return Response(await asyncio.to_thread(state.metrics), media_type=CONTENT_TYPE)

    def posted(endpoint: _Endpoint) -> _Handler:
        async def handle(request: Request) -> Response:
            desk = state.open_desk()
            body = await read_body(request, state.options)
            asked = await asyncio.to_thread(model_of, body) if len(body) > LARGE else model_of(body)
            name = state.names[0] if asked is None else asked
            state.check_name(name)
            visit = visit_of(request)
            visit.model = name
            adapter = name if name in state.adapters else None
            terms = Terms(model=name, adapter=adapter, strict=state.options.strict, key=visit.key)
            return await endpoint(desk.for_client(visit), terms, request, body)

        return handle

    posts = [Route(path, _answering(posted(one)), methods=["POST"]) for path, one in _ENDPOINTS.items()]
    page = page_routes()
    routes = [
        *page,
        Route("/health", _answering(health)),
        Route("/ping", _answering(health)),
        Route("/version", _answering(version)),
        Route("/metrics", _answering(metrics)),
        Route("/v1/models", _answering(models)),
        Route("/v1/models/{name:path}", _answering(model)),
        Route("/v1/engine/live", _answering(engine_live)),
        *posts,
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _on_http_error})
    paths = frozenset(route.path for route in routes if "{" not in route.path)
    public = frozenset({"/health", "/ping", *(route.path for route in page)})  # the page holds no secrets
    shielded = Shield(app, state.options, state.accounts, paths, public)
    if not state.options.cors_origins:
        return shielded
    return CORSMiddleware(
        shielded,
        allow_origins=state.options.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )


def _model(state: State, name: str) -> dict[str, Any]:
    config = state.open_desk().service.config
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "spola",
        "max_model_len": config.max_model_len,
        "root": state.names[0],
        "parent": state.names[0] if name in state.adapters else None,
    }


def _answering(handler: _Handler) -> _Handler:
    """``handler`` with every error as a response: Starlette would answer and raise a bug on as well."""

    async def handle(request: Request) -> Response:
        path = request.url.path
        try:
            return await handler(request)
        except ApiError as error:
            return error_response(error, path)
        except SpolaError as error:
            return error_response(from_spola(error), path)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads this
        except Exception as error:
            return error_response(internal_error(path, error), path)

    return handle


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    said = {404: f"there is nothing at {path[:100]}", 405: f"{request.method} is not allowed here"}
    response = error_response(ApiError(error.status_code, said.get(error.status_code, error.detail)), path)
    response.headers.update(error.headers or {})  # Allow, with a 405
    return response
