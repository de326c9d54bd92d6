"""Shield: what every request passes first: its id, its key, where it comes from; and its line in the log.

A web page of another origin may call only if it was named; this holds without keys too, or any page in a
browser on this machine could use the model.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spola.server.accounts import Account, Accounts
from spola.server.errors import ApiError, error_response
from spola.server.keys import ANONYMOUS
from spola.server.log import logger
from spola.server.options import ServerOptions
from spola.server.visit import Visit

__all__ = ["Shield"]

QUIET = frozenset({"/health", "/ping", "/metrics", "/v1/engine/live"})  # asked all the time: not in the log
MAX_ID = 128
_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID}}}")
_ORIGINS = {"http", "https"}


class Shield:
    """ASGI middleware around the routes.

    ``routes`` are the paths that metrics may name, ``public`` those that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        accounts: Accounts,
        routes: frozenset[str],
        public: frozenset[str],
    ) -> None:
        self._app = app
        self._options = options
        self._accounts = accounts
        self._routes = routes
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _ID.fullmatch(asked) else f"req-{secrets.token_hex(12)}"
        started, status = time.monotonic(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        visit: Visit | None = None
        try:
            self._check_origin(headers, scope["method"])
            visit = Visit(request_id, self._account(headers, scope["path"], scope["method"]))
            scope.setdefault("state", {})["visit"] = visit
            await self._app(scope, receive, named)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, named)
        except asyncio.CancelledError:
            if status:
                raise
            # The server leaves, and what was made ready took too long, as a grammar may.
            late = ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
            await error_response(late, scope["path"])(scope, receive, named)
        finally:
            self._note(scope, request_id, visit, status or 499, time.monotonic() - started)

    def _account(self, headers: Headers, path: str, method: str) -> Account:
        """Whose request it is. Raises ApiError 401."""
        ring = self._accounts.ring
        if not ring:
            return self._accounts.of(ANONYMOUS)
        found = [key for secret in _secrets(headers) if (key := ring.find(secret)) is not None]
        if found:
            return self._accounts.of(found[0])
        if path in self._public and method != "POST":  # a POST to the page's path is a request to the model
            return self._accounts.of(ANONYMOUS)
        said = "is not valid" if _secrets(headers) else "is missing; send Authorization: Bearer KEY"
        raise ApiError(401, f"the API key {said}", code="invalid_api_key")

    def _check_origin(self, headers: Headers, method: str) -> None:
        """Refuse web pages that nobody named. Raises ApiError 403."""
        origin, allowed = headers.get("origin"), self._options.cors_origins
        if origin is None or method in ("GET", "HEAD", "OPTIONS") or "*" in allowed or origin in allowed:
            return
        parts = urlsplit(origin)
        own = parts.scheme in _ORIGINS and parts.netloc == headers.get("host")
        if own and (self._accounts.ring or _is_fixed(parts.hostname)):
            return  # the server's own page; a name that a stranger could point at this machine needs a key
        raise ApiError(403, "pages of this origin may not call; the server must be told --cors-origin")

    def _note(self, scope: Scope, request_id: str, visit: Visit | None, status: int, seconds: float) -> None:
        path, method = scope["path"], scope["method"]
        account = self._accounts.of(ANONYMOUS) if visit is None else visit.account
        route = path if path in self._routes else "other"
        at = (route, method if method in ("GET", "POST", "OPTIONS") else "other", status)
        account.http[at] = account.http.get(at, 0) + 1
        if path in QUIET and status < 500:
            return
        if self._options.spans is not None:
            self._options.spans.note(visit, Headers(scope=scope), at, request_id, seconds)
        fields = {} if visit is None else visit.fields()
        fields |= {"duration_ms": round(seconds * 1000, 1), "request_id": request_id}
        shown = path if len(path) < 200 else path[:200] + "..."
        request = {"method": method, "path": shown, "status": status}
        shown = shown if shown.isprintable() else ascii(shown)
        logger.info("%s %s %d", method, shown, status, extra={"fields": fields, "request": request})


def _secrets(headers: Headers) -> list[str]:
    """The secrets that a request shows, as OpenAI's or as Anthropic's clients do."""
    out = []
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        out.append(value.strip())
    if headers.get("x-api-key"):
        out.append(headers["x-api-key"])
    return out


def _is_fixed(host: str | None) -> bool:
    """Whether a name always means the same machine: an address, or localhost."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
