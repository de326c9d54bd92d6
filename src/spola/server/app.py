"""The web application: its routes and what is around them.

Builds no engine and opens no socket; that is ``server.serve``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from spola.runtime.desk import Desk
from spola.server.asks import Terms
from spola.server.body import LARGE, model_of, read_body
from spola.server.borrowed import tagged
from spola.server.embeddings import embeddings
from spola.server.errors import ApiError, error_response, from_spola, internal_error, json_response
from spola.server.generate import chat_completions, completions
from spola.server.live import live
from spola.server.llama_cpp import llama_completion, props
from spola.server.messages import count_tokens, messages
from spola.server.metrics import CONTENT_TYPE
from spola.server.ollama import embed_route, generate, ollama_chat
from spola.server.ollama_models import running, show, tags
from spola.server.openapi import document
from spola.server.responses import responses
from spola.server.shelf import Book
from spola.server.shield import Shield
from spola.server.state import State
from spola.server.tgi import info, model_of_tgi, tgi_compatible, tgi_generate, tgi_stream
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
    "/": tgi_compatible,
    "/generate": tgi_generate,
    "/generate_stream": tgi_stream,
    "/completion": llama_completion,
    "/api/chat": ollama_chat,
    "/api/generate": generate,
    "/api/embed": embed_route,
    "/api/show": show,
}
_TGI = ("/", "/generate", "/generate_stream")


class _Handlers:
    """What the routes answer, but for the page; each may raise SpolaError or ApiError."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        self._state.check_alive()
        return json_response({"status": "ok"})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def models(self, request: Request) -> Response:
        self._state.check_open()
        data = [_model(book, name) for book in self._state.shelf.books for name in book.known]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        self._state.check_open()
        name = request.path_params["name"]
        return json_response(_model(self._state.shelf.book(name), name))

    async def engine_live(self, request: Request) -> Response:
        asked = request.query_params.get("model")
        desk = (
            self._state.open_desk()
            if asked is None
            else await self._state.shelf.desk(self._state.shelf.book(asked))
        )
        return await live(desk.service, request)

    async def about(self, request: Request) -> Response:
        self._state.check_open()
        asked = request.query_params.get("model")
        book = self._state.shelf.book(asked)
        desk = await self._state.shelf.desk(book)
        name = asked or book.name
        if request.url.path == "/props":
            return json_response(props(desk.service, name))
        return json_response(info(desk.service, name, desk.limits.live))

    async def ollama_list(self, request: Request) -> Response:
        self._state.check_open()
        make = running if request.url.path == "/api/ps" else tags
        return json_response(make(self._state.shelf.books))

    async def metrics(self, request: Request) -> Response:
        return Response(await asyncio.to_thread(self._state.metrics), media_type=CONTENT_TYPE)

    def posted(self, endpoint: _Endpoint) -> _Handler:
        async def handle(request: Request) -> Response:
            self._state.check_open()
            body, path = await read_body(request, self._state.options), request.url.path
            name_in = model_of_tgi if path in _TGI else model_of
            asked = await asyncio.to_thread(name_in, body) if len(body) > LARGE else name_in(body)
            asked = tagged(self._state.shelf, asked) if path.startswith("/api/") else asked
            book = self._state.shelf.book(asked)
            loads, visit = book.loads, visit_of(request)
            visit.model = asked or book.name
            adapter = asked if asked in book.adapters else None
            terms = Terms(
                model=visit.model, adapter=adapter, strict=self._state.options.strict, key=visit.key
            )
            book.users += 1
            try:
                desk = await self._state.shelf.desk(book)
                response = await endpoint(desk.for_client(visit), terms, request, body)
            finally:
                book.users -= 1
            if book.loads > loads:
                response.headers["X-Spola-Model-Load"] = f"{book.load_s:.3f}"  # seconds
            return response

        return handle


def create_app(state: State) -> ASGIApp:
    """The application over ``state``."""
    do, page = _Handlers(state), page_routes()
    routes = [
        *page,
        Route("/health", _answering(do.health)),
        Route("/ping", _answering(do.health)),
        Route("/version", _answering(do.version)),
        Route("/metrics", _answering(do.metrics)),
        Route("/v1/models", _answering(do.models)),
        Route("/v1/models/{name:path}", _answering(do.model)),
        Route("/v1/engine/live", _answering(do.engine_live)),
        Route("/info", _answering(do.about)),
        Route("/props", _answering(do.about)),
        Route("/api/tags", _answering(do.ollama_list)),
        Route("/api/ps", _answering(do.ollama_list)),
        Route("/api/version", _answering(do.version)),
        *(Route(path, _answering(do.posted(one)), methods=["POST"]) for path, one in _ENDPOINTS.items()),
    ]
    served = {
        path.replace("{name:path}", "{name}"): ("POST",) if path in _ENDPOINTS else ("GET",)
        for path in (route.path for route in routes if route not in page)
    }
    api = json_response(document(served)).body

    async def openapi(request: Request) -> Response:
        return Response(api, media_type="application/json")

    routes.append(Route("/openapi.json", _answering(openapi)))
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


def _model(book: Book, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = {"loaded": book.desk is not None}
    if book.desk is not None:
        loaded |= {"max_model_len": book.desk.service.config.max_model_len}
    parent = book.name if name in book.adapters else None
    family = {"root": book.name, "parent": parent}
    return {"id": name, "object": "model", "created": book.created, "owned_by": "spola", **loaded, **family}


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
