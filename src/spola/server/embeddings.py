"""POST /v1/embeddings: hidden states of the last layer, pooled and scaled to length 1.

Models made for generating give weak embeddings; nothing here makes them better. ``dimensions`` keeps the
first so many and scales again, which loses more the less a model was trained for it.
"""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola.core.params import SamplingParams
from spola.core.step import Want
from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Body, Terms
from spola.server.errors import ApiError, as_called, json_response
from spola.server.generate import UNKNOWN_FIELDS, finished
from spola.server.schema import decode, parse_object, reported

__all__ = ["EmbeddingsRequest", "embed", "embeddings", "unit"]

MAX_INPUTS = 2048
_PARAMS = SamplingParams(temperature=0.0, max_tokens=1)


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings."""

    input: Annotated[str | list[Any], Meta(description="A text, a list of token ids, or a list of either.")]
    model: Annotated[str | None, Meta(description="One of the served models; absent: the default one.")] = (
        None
    )
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Meta(description="base64 is of little-endian f32.")
    ] = None
    dimensions: Annotated[int | None, Meta(description="Keep the first so many, scaled to length 1.")] = None
    pooling: Annotated[
        Literal["mean", "last"] | None, Meta(description="Over all tokens (default), or the last one's.")
    ] = None
    user: Annotated[str | None, Meta(description="Taken.")] = None


@dataclass(frozen=True, slots=True)
class _Ask:
    prompts: list[list[int]]
    request: EmbeddingsRequest
    unknown: tuple[str, ...]


async def embeddings(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /v1/embeddings."""
    ask = await asyncio.to_thread(_ask, desk.service, terms, body)
    request = ask.request
    with as_called({"prompt": "input"}):
        vectors = await embed(desk, http, ask.prompts, request.pooling or "mean", terms.adapter)
    if vectors is None:
        return Response(status_code=499)
    data = []
    for index, vector in enumerate(vectors):
        cut = unit(vector[: request.dimensions] if request.dimensions else vector)
        shown: Any = cut.tolist()
        if request.encoding_format == "base64":
            shown = base64.b64encode(cut.tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    tokens = sum(map(len, ask.prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = {UNKNOWN_FIELDS: reported(ask.unknown)} if ask.unknown else {}
    answer = {"object": "list", "data": data, "model": terms.model, "usage": usage}
    return json_response(answer, headers=headers)


async def embed(
    desk: Desk,
    http: Request,
    prompts: Sequence[Sequence[int]],
    pooling: Literal["mean", "last"],
    adapter: str | None = None,
) -> list[array[float]] | None:
    """One pooled f32 vector per prompt; None when the client has left."""
    want: Want = "embed_mean" if pooling == "mean" else "embed_last"
    ticket = desk.submit_all(prompts, _PARAMS, want=want, adapter=adapter)
    if not await finished(desk, ticket, http):
        return None
    out = []
    for job in ticket.jobs:
        vector = array("f")
        vector.frombytes(job.choices[0].vector or b"")
        out.append(vector)
    return out


def unit(vector: array[float]) -> array[float]:
    """``vector`` scaled to length 1; zeros stay."""
    length = math.sqrt(math.fsum(x * x for x in vector))
    return array("f", (x / length for x in vector)) if length else vector


def _ask(service: Service, terms: Terms, body: Body) -> _Ask:
    raw = decode(body) if isinstance(body, bytes) else dict(body)
    parsed = parse_object(raw, EmbeddingsRequest, strict=terms.strict)
    request = parsed.request
    hidden = service.spec.hidden
    if request.dimensions is not None and not 1 <= request.dimensions <= hidden:
        raise ApiError(
            400, f"dimensions must be from 1 to {hidden}, not {request.dimensions}", param="dimensions"
        )
    given = request.input
    single = isinstance(given, str) or all(isinstance(item, int) for item in given)
    listed: list[Any] = [given] if single else list(given)
    if not given or len(listed) > MAX_INPUTS:
        raise ApiError(400, f"input must have 1 to {MAX_INPUTS} texts, each with a token", param="input")
    return _Ask([_ids(service, item, i) for i, item in enumerate(listed)], request, parsed.unknown)


def _ids(service: Service, item: Any, place: int) -> list[int]:
    is_ids = isinstance(item, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in item)
    if not isinstance(item, str) and not is_ids:
        raise ApiError(400, f"input[{place}] must be a text or a list of token ids", param="input")
    with as_called({"prompt": "input"}):
        ids = service.prompt_ids(item)
    if not ids or not item:
        raise ApiError(400, f"input[{place}] is empty", param="input")
    return ids
