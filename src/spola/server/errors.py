"""Errors as OpenAI's clients expect them: one JSON body with four keys, and the right status.

A wrong request is never a 5xx, which clients would send again. No path, name of a user or traceback gets
into a body.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import msgspec
from starlette.responses import Response

from spola.core import flags
from spola.core.errors import CapacityError, RequestError, SpolaError

__all__ = ["ApiError", "error_body", "error_response", "from_spola", "internal_error", "json_response"]


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
        return ApiError(error.status, str(error), param=error.param, code=error.code)
    if isinstance(error, CapacityError):
        return ApiError(400, str(error), param="prompt", code="context_length_exceeded")
    return ApiError(500, str(error), kind="server_error")


def internal_error(where: str, error: Exception) -> ApiError:
    """A bug: told on stderr, with the traceback under SPOLA_DEBUG; the client learns nothing of it."""
    print(f"spola: internal error in {where}: {type(error).__name__}: {error}", file=sys.stderr)
    if flags.read("SPOLA_DEBUG"):
        traceback.print_exception(error)
    return ApiError(500, "internal error", kind="server_error")


def error_body(error: ApiError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return json_response(error_body(error), error.status, headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
