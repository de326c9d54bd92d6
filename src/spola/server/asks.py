"""From a request's body to what the engine needs: ids, sampling settings and the shape of the answer.

One way in for HTTP and for batch files. Parses, checks and tokenizes; sends nothing. Any thread may call it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from spola.core.params import SamplingParams
from spola.runtime.service import Service
from spola.server.errors import ApiError
from spola.server.replies import ChatShape, CompletionShape, Shape
from spola.server.schema import ChatRequest, CompletionRequest, parse, plain

__all__ = ["ASKS", "Ask", "chat_ask", "completion_ask", "fingerprint"]

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked request. ``stream``: the answer is wanted in pieces."""

    ids: list[int]
    params: SamplingParams
    shape: Shape
    stream: bool
    cache_salt: str | None = None


def completion_ask(service: Service, name: str, body: bytes) -> Ask:
    """A body for /v1/completions. Raises ApiError or SpolaError naming the field."""
    request = parse(body, CompletionRequest)
    _check_model(request.model, name)
    prompt: Any = request.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise ApiError(400, "several prompts in one request are not supported yet", param="prompt")
        prompt = prompt[0]
    limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    return Ask(
        ids=service.prompt_ids(prompt),
        params=_params(service, request, limit),
        shape=CompletionShape(name, fingerprint(service), include_usage=_wants_usage(request)),
        stream=bool(request.stream),
        cache_salt=request.cache_salt,
    )


def chat_ask(service: Service, name: str, body: bytes) -> Ask:
    """A body for /v1/chat/completions. Raises ApiError or SpolaError naming the field."""
    request = parse(body, ChatRequest)
    _check_model(request.model, name)
    if not request.messages:
        raise ApiError(400, "messages is empty", param="messages")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise ApiError(
            400, "give max_completion_tokens or max_tokens, not both", param="max_completion_tokens"
        )
    messages = [plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    newer, older = request.max_completion_tokens, request.max_tokens
    return Ask(
        ids=service.chat_ids(messages),
        params=_params(service, request, older if newer is None else newer),
        shape=ChatShape(name, fingerprint(service), include_usage=_wants_usage(request)),
        stream=bool(request.stream),
        cache_salt=request.cache_salt,
    )


ASKS: dict[str, Callable[[Service, str, bytes], Ask]] = {
    "/v1/completions": completion_ask,
    "/v1/chat/completions": chat_ask,
}


def _check_model(asked: str | None, name: str) -> None:
    if asked is not None and asked != name:
        raise ApiError(
            404,
            f"there is no model {asked[:100]!r}; this server has {name!r}",
            param="model",
            code="model_not_found",
        )


def _params(
    service: Service, request: CompletionRequest | ChatRequest, max_tokens: int | None
) -> SamplingParams:
    stop = () if request.stop is None else request.stop
    return service.defaults_with(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=request.ignore_eos,
        max_tokens=max_tokens,
    )


def _wants_usage(request: CompletionRequest | ChatRequest) -> bool:
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def fingerprint(service: Service) -> str:
    """What the bits of every answer depend on: backend, weights, types of activations, K and V."""
    config = service.config
    parts = msgspec.json.encode([config.fingerprint, config.precise, config.kv_dtypes])
    return f"{config.backend}-{hashlib.blake2b(parts, digest_size=8).hexdigest()}"
