"""Errors as clients expect them: OpenAI's body with four keys, or that of the protocol a route belongs to.

A wrong request is never a 5xx, which clients would send again. No path, name of a user or traceback gets
into a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from spola.core import flags
from spola.core.errors import CapacityError, RequestError, SpolaError
from spola.server.log import logger

__all__ = [
    "ApiError",
    "as_called",
    "error_body",
    "error_response",
    "from_spola",
    "internal_error",
    "json_response",
    "worded",
]

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_TGI = {401: "unauthorized", 429: "overloaded", 500: "generation", 503: "unhealthy"}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after


def from_spola(error: SpolaError) -> ApiError:
    """The engine's refusals as HTTP: the request's own fault is 400, anything else the server's."""
    if isinstance(error, RequestError):
        kind, wait = "invalid_request_error", error.retry_after
        if error.status == 429:
            kind = "rate_limit_error"
        elif error.status >= 500:
            kind, wait = "server_error", wait or 5
        return ApiError(
            error.status, str(error), kind=kind, param=error.param, code=error.code, retry_after=wait
        )
    if isinstance(error, CapacityError):
        return ApiError(400, str(error), param="prompt", code="context_length_exceeded")
    return ApiError(500, str(error), kind="server_error")


@contextmanager
def as_called(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a field that the client's protocol calls otherwise, with the name that the client wrote.

    ``names``: our name -> the client's. Raises ApiError.
    """
    try:
        yield
    except (ApiError, SpolaError) as error:
        told = from_spola(error) if isinstance(error, SpolaError) else error
        ours = told.param or ""
        if ours in names:
            told.param = names[ours]
            if told.message.startswith(ours):
                told.message = told.param + told.message.removeprefix(ours)
        raise told from None


def internal_error(where: str, error: Exception) -> ApiError:
    """A bug: told in the log, with the traceback under SPOLA_DEBUG; the client learns nothing of it."""
    trace = error if flags.read("SPOLA_DEBUG") else None
    logger.error("internal error in %s: %s: %s", where, type(error).__name__, error, exc_info=trace)
    return ApiError(500, "internal error", kind="server_error")


def error_body(error: ApiError) -> dict[str, Any]:
    """OpenAI's shape."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def worded(error: ApiError, path: str) -> dict[str, Any]:
    """The body of ``error`` in the shape of the protocol that ``path`` belongs to."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    if path.startswith("/api/"):  # Ollama
        return {"error": error.message}
    if path in ("/", "/generate", "/generate_stream", "/info"):  # text-generation-inference
        return {"error": error.message, "error_type": _TGI.get(error.status, "validation")}
    if path in ("/completion", "/props"):  # llama-server
        kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else error.kind
        return {"error": {"code": error.status, "message": error.message, "type": kind}}
    return error_body(error)


def error_response(error: ApiError, path: str = "") -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(worded(error, path), error.status, headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
