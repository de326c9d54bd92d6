"""GET /api/tags, /api/ps and POST /api/show: the served models in Ollama's shapes. No path is told.

What only a loaded model knows (its digest, family and sizes) is empty for one that is not loaded.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Body, Terms
from spola.server.borrowed import Table, object_of
from spola.server.errors import json_response
from spola.server.generate import UNKNOWN_FIELDS
from spola.server.schema import reported
from spola.server.shelf import Book
from spola.spec.manifest import manifest

__all__ = ["ShowRequest", "running", "show", "tags"]


class ShowRequest(msgspec.Struct, kw_only=True):
    """POST /api/show."""

    model: Annotated[str, Meta(description="One of the served models; :latest may follow.")]


_SHOW = Table(
    refused={
        "system": ("the model's own settings are shown", ("",)),
        "template": ("the model's own settings are shown", ("",)),
        "options": ("the model's own settings are shown", ({},)),
        "verbose": ("tokens are not listed", (False,)),
    }
)


def tags(books: Sequence[Book]) -> dict[str, Any]:
    """GET /api/tags: every name that can be asked for, adapters too."""
    return {"models": [_row(book, name) for book in books for name in book.known]}


def running(books: Sequence[Book]) -> dict[str, Any]:
    """GET /api/ps: what is loaded. It has no time at which it goes; ``size_vram`` is 0."""
    rows = []
    for book in books:
        if book.desk is not None:
            length = book.desk.service.config.max_model_len
            more = {"size_vram": 0, "context_length": length, "expires_at": "9999-12-31T23:59:59Z"}
            rows.append(_row(book, book.name) | more)
    return {"models": rows}


async def show(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /api/show."""
    taken = _SHOW.take(object_of(body), ShowRequest, strict=terms.strict)
    service, spec = desk.service, desk.service.spec
    source = "" if service.template is None else service.template.source
    answer = {
        "modelfile": f"FROM {terms.model}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in service.defaults.items()),
        "template": source,
        "details": _details(service, terms.model if terms.adapter else None),
        "model_info": {
            "general.architecture": spec.arch,
            "general.parameter_count": _parameters(service),
            f"{spec.arch}.block_count": len(spec.layers),
            f"{spec.arch}.context_length": service.config.max_model_len,
            f"{spec.arch}.embedding_length": spec.hidden,
            f"{spec.arch}.vocab_size": spec.vocab,
        },
        # A model whose template knows no tools is told of them in its system message.
        "capabilities": ["completion", "embedding", *(["tools"] if source else [])],
    }
    return json_response(answer, headers={UNKNOWN_FIELDS: reported(taken.unused)} if taken.unused else None)


def _row(book: Book, name: str) -> dict[str, Any]:
    service = None if book.desk is None else book.desk.service
    parent = book.name if name in book.adapters else None
    empty = {"parent_model": parent or "", "format": "", "family": "", "families": []}
    empty |= {"parameter_size": "", "quantization_level": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": _when(book.created),
        "size": book.bytes if service is None else service.config.weights_bytes,
        "digest": "" if service is None else _digest(service.config.fingerprint, name),
        "details": empty if service is None else _details(service, parent),
    }


def _details(service: Service, parent: str | None) -> dict[str, Any]:
    config, spec = service.config, service.spec
    weights = Counter(service.dtypes.values())
    return {
        "parent_model": parent or "",
        "format": "gguf" if config.path.endswith(".gguf") else "safetensors",
        "family": spec.arch,
        "families": [spec.arch],
        "parameter_size": _short(_parameters(service)),
        "quantization_level": weights.most_common(1)[0][0] if weights else "",
    }


def _parameters(service: Service) -> int:
    return sum(math.prod(info.shape) for info in manifest(service.spec))


def _short(n: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= size:
            return f"{n / size:.4g}{unit}"
    return str(n)


def _digest(fingerprint: str, name: str) -> str:
    """Names the weights under a name, as long as Ollama's; it is not a hash of the file."""
    return hashlib.sha256(f"{fingerprint} {name}".encode()).hexdigest()


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
