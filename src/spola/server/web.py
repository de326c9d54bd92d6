"""The web page: built files from the package, the glossary for its tooltips, and headers that keep it closed.

The page talks to the same API as everybody. Its sources are in ``page/``; what is served is built by
``make page`` into ``server/page`` and carried by the package, so that nothing is fetched from anywhere.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spola.glossary import Glossary

__all__ = ["page_routes"]

# Scripts and styles come from here alone, nothing is inlined, and no other page may frame this one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, answered 304 while it is the same
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}


class _File:
    """One file as it is sent, with its type by the name's ending."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.headers = _HEADERS | {
            "Content-Type": _TYPES[name[name.rindex(".") :]],
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        }

    async def answer(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.headers["ETag"]:
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def page_routes() -> list[Route]:
    """A route for each file of the page; no part of a request's path ever names a file."""
    root = files(__package__).joinpath("page")
    routes = [Route("/", _File("index.html", root.joinpath("index.html").read_bytes()).answer)]
    for asset in root.joinpath("page").iterdir():
        routes.append(Route(f"/page/{asset.name}", _File(asset.name, asset.read_bytes()).answer))
    terms = msgspec.json.encode({"terms": Glossary().terms})
    return [*routes, Route("/page/glossary.json", _File("glossary.json", terms).answer)]
