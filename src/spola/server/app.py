"""The web application: routes, body limits, and the states of a server (loading, ready, leaving).

Builds no engine and opens no socket; that is ``server.serve``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from spola.core.errors import SpolaError
from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Terms
from spola.server.errors import ApiError, error_response, from_spola, internal_error, json_response
from spola.server.generate import chat_completions, completions
from spola.server.live import live
from spola.server.web import page_routes

__all__ = ["MAX_BODY", "State", "create_app"]

MAX_BODY = 16 << 20

_Handler = Callable[[Request], Awaitable[Response]]
_Endpoint = Callable[[Desk, Terms, Request, bytes], Awaitable[Response]]


class State:
    """What the routes look at. ``ready`` once the model is loaded; ``leaving`` after a signal to stop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.desk: Desk | None = None
        self.leaving = False
        self.created = int(time.time())

    def ready(self, service: Service) -> None:
        """Serve ``service`` from now on. Called on the event loop."""
        self.desk = Desk(service)

    def open_desk(self) -> Desk:
        """The desk, if requests are taken now; else ApiError 503."""
        if self.leaving:
            raise ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
        if self.desk is None:
            raise ApiError(503, "the model is loading", kind="server_error", retry_after=1)
        if not self.desk.service.loop.alive:
            raise ApiError(503, "the engine has failed; restart the server", kind="server_error")
        return self.desk


def create_app(state: State) -> Starlette:
    """The application over ``state``."""

    async def health(request: Request) -> Response:
        state.open_desk()
        return json_response({"status": "ok"})

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [_model(state)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != state.name:
            raise ApiError(404, f"there is no model {name[:100]!r}", param="model", code="model_not_found")
        return json_response(_model(state))

    async def engine_live(request: Request) -> Response:
        return await live(state.open_desk().service, request)

    def posted(endpoint: _Endpoint) -> _Handler:
        async def handle(request: Request) -> Response:
            desk = state.open_desk()
            return await endpoint(desk, Terms(model=state.name), request, await _body(request))

        return handle

    return Starlette(
        routes=[
            *page_routes(),
            Route("/health", _answering(health)),
            Route("/v1/models", _answering(models)),
            Route("/v1/models/{name:path}", _answering(model)),
            Route("/v1/engine/live", _answering(engine_live)),
            Route("/v1/completions", _answering(posted(completions)), methods=["POST"]),
            Route("/v1/chat/completions", _answering(posted(chat_completions)), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _on_http_error},
    )


def _model(state: State) -> dict[str, Any]:
    desk = state.open_desk()
    config = desk.service.config
    return {
        "id": state.name,
        "object": "model",
        "created": state.created,
        "owned_by": "spola",
        "max_model_len": config.max_model_len,
    }


def _answering(handler: _Handler) -> _Handler:
    """``handler`` with every error as a response: Starlette would answer and raise a bug on as well."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return error_response(error)
        except SpolaError as error:
            return error_response(from_spola(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads this
        except Exception as error:
            return error_response(internal_error(request.url.path, error))

    return handle


async def _body(request: Request) -> bytes:
    """The request's body, refused as soon as it is known to be too large."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise ApiError(413, f"the body has more than {MAX_BODY} bytes")
    return bytes(data)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {
        404: f"there is nothing at {request.url.path[:100]}",
        405: f"{request.method} is not allowed here",
    }
    response = error_response(ApiError(error.status_code, said.get(error.status_code, error.detail)))
    response.headers.update(error.headers or {})  # Allow, with a 405
    return response
