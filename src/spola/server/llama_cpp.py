"""POST /completion and GET /props: the protocol of llama.cpp's llama-server.

A body becomes that of a completion; nothing is generated here. The answer's words are in ``llama_cpp_reply``.
Fields as in llama-server's README. Absent ones have this server's defaults: the model's own, else greedy.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola import __version__
from spola.core.params import MAX_LOGPROBS, SamplingParams
from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Ask, Body, Terms, completion_ask
from spola.server.borrowed import Table, check_window, in_words, object_of
from spola.server.errors import ApiError
from spola.server.llama_cpp_reply import LlamaReply, settings
from spola.server.pieces import PieceShape
from spola.server.translate import translated

__all__ = ["LlamaRequest", "llama_completion", "props"]


def _of(text: str) -> Meta:
    return Meta(description=text)


class LlamaRequest(msgspec.Struct, kw_only=True):
    """POST /completion."""

    prompt: Annotated[
        str | list[Any] | dict[str, Any],
        _of("A text, token ids, both mixed in a list, or an object with prompt_string."),
    ]
    model: Annotated[str | None, _of("One of the served models; absent: the default one.")] = None
    n_predict: Annotated[int | None, _of("Tokens to generate, at most; absent or -1: as many as fit.")] = None
    temperature: Annotated[float | None, _of("0 is greedy.")] = None
    top_k: Annotated[int | None, _of("0 is off.")] = None
    top_p: Annotated[float | None, _of("Above 0, at most 1.")] = None
    min_p: Annotated[float | None, _of("From 0 to 1.")] = None
    seed: Annotated[int | None, _of("Same seed, same answer; -1 is a random one.")] = None
    repeat_penalty: Annotated[float | None, _of("Counts prompt and answer; 1 is off.")] = None
    repeat_last_n: Annotated[int | None, _of("-1 with penalties: they count the whole text.")] = None
    presence_penalty: Annotated[float | None, _of("-2 to 2.")] = None
    frequency_penalty: Annotated[float | None, _of("-2 to 2.")] = None
    logit_bias: Annotated[Any, _of("Pairs of a token id and a number from -100 to 100, or an object.")] = None
    stop: Annotated[list[str] | None, _of("Up to 16 non-empty strings.")] = None
    ignore_eos: Annotated[bool | None, _of("Go on after an end of text.")] = None
    grammar: Annotated[str | None, _of("GBNF or Lark: the form that the answer has.")] = None
    json_schema: Annotated[Any, _of("A JSON schema that the answer follows.")] = None
    n_probs: Annotated[int | None, _of("So many alternatives per token, up to 20.")] = None
    post_sampling_probs: Annotated[bool | None, _of("Probabilities as they were drawn from.")] = None
    return_tokens: Annotated[bool | None, _of("The answer's ids in tokens; a stream always has them.")] = None
    cache_prompt: Annotated[bool | None, _of("False: nothing is taken from the prefix cache.")] = None
    stream: Annotated[bool | None, _of("Server-sent events.")] = None


_OFF = ("use temperature, top_k, top_p or min_p", (0,))
_BODY = Table(
    refused={
        "dynatemp_range": _OFF,
        "mirostat": _OFF,
        "xtc_probability": _OFF,
        "adaptive_target": ("use temperature, top_k, top_p or min_p", (-1,)),
        "top_n_sigma": ("use temperature, top_k, top_p or min_p", (-1,)),
        "typical_p": ("use top_p or min_p", (1,)),
        "dry_multiplier": ("use repeat_penalty", (0,)),
        "min_keep": ("as many tokens are kept as the others say", (0,)),
        "samplers": ("the order of sampling is fixed", ()),
        "n_cmpl": ("one answer a request; /v1/completions has n", (1,)),
        "n_indent": ("use grammar", (0,)),
        "n_cache_reuse": ("only equal beginnings are reused", (0,)),
        "n_discard": ("a context is not shifted; the answer ends when it is full", (0,)),
        "t_max_predict_ms": ("/v1/completions has timeout", (0,)),
        "id_slot": ("there are no slots", (-1,)),
        "lora": ("name the adapter in model", ([],)),
        "response_fields": ("all fields are told", ([],)),
        "timings_per_token": ("timings are in the last piece", (False,)),
        "return_progress": ("progress is not told", (False,)),
        "sse_ping_interval": ("pings come every 10 seconds", ()),
        "multimodal_data": ("this model takes text only", ([],)),
    },
    idle=(
        *("n_keep", "dynatemp_exponent", "mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base"),
        *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "adaptive_decay"),
    ),
)
_NAMES = {"max_tokens": "n_predict", "repetition_penalty": "repeat_penalty", "logprobs": "n_probs"}
_AS_GIVEN = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos"),
    *("grammar", "json_schema", "stream", "stop"),
)


async def llama_completion(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /completion."""
    ask, words = await asyncio.to_thread(_ask, desk.service, terms, object_of(body))
    return await translated(desk, http, ask, words)


def _ask(service: Service, terms: Terms, raw: dict[str, Any]) -> tuple[Ask, LlamaReply]:
    taken = _BODY.take(raw, LlamaRequest, strict=terms.strict)
    request = taken.request
    penalties = (request.repeat_penalty, request.presence_penalty, request.frequency_penalty)
    check_window(request.repeat_last_n, penalties, "repeat_last_n")
    with in_words(_NAMES):
        ask = completion_ask(service, terms, _body(service, request))
    top = request.n_probs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise ApiError(400, f"n_probs must be between 0 and {MAX_LOGPROBS}, not {top}", param="n_probs")
    params = msgspec.structs.replace(
        ask.params,
        logprobs=top or None,
        logprobs_mode="processed" if request.post_sampling_probs else "raw",
    )
    shape = PieceShape(replace(ask.shape.style, top=top or None, params=params))
    ask = replace(ask, params=params, shape=shape, unknown=taken.unused)
    words = LlamaReply(
        model=terms.model,
        tokenizer=service.tokenizer,
        params=params,
        stream=ask.stream,
        ids=bool(request.return_tokens),
        top=top,
        drawn=bool(request.post_sampling_probs),
    )
    return ask, words


def _body(service: Service, request: LlamaRequest) -> dict[str, Any]:
    out: dict[str, Any] = {name: getattr(request, name) for name in _AS_GIVEN}
    limit = request.n_predict
    if limit == 0:
        raise ApiError(400, "n_predict must not be 0", param="n_predict")
    out |= {
        "prompt": _prompt(service, request.prompt),
        "max_tokens": service.config.max_model_len if limit is None or limit < 0 else limit,
        "seed": None if request.seed == -1 else request.seed,
        "repetition_penalty": request.repeat_penalty,
        "logit_bias": _biases(request.logit_bias),
        "cache_salt": secrets.token_hex(16) if request.cache_prompt is False else None,
    }
    return out


def _prompt(service: Service, given: Any) -> str | list[int]:
    """One prompt as a text or as ids. Raises ApiError."""
    if isinstance(given, Mapping):
        if given.get("multimodal_data"):
            raise ApiError(400, "prompt.multimodal_data: this model takes text only", param="prompt")
        given = given.get("prompt_string")
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise ApiError(400, "prompt must be a text, a list of token ids, or both mixed", param="prompt")
    if len(given) == 1 and not _is_id(given[0]):
        return _prompt(service, given[0])
    if not any(map(_is_id, given)):
        said = "prompt has several prompts; one at a time here, /v1/completions takes more"
        raise ApiError(400, said, param="prompt")
    ids: list[int] = []
    for place, item in enumerate(given):
        if _is_id(item):
            ids.append(item)
        elif isinstance(item, str):
            ids += service.prompt_ids(item, add_special=place == 0)
        else:
            raise ApiError(400, f"prompt[{place}] is neither a text nor a token id", param="prompt")
    return ids


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _biases(given: Any) -> dict[str, float] | None:
    """By token id. Raises ApiError for texts, and for false: no bias forbids a token for certain."""
    if not given:
        return None
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, list) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise ApiError(400, "logit_bias must be pairs of a token id and a number", param="logit_bias")
    out = {}
    for token, value in pairs:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ApiError(400, "logit_bias: a bias must be a number from -100 to 100", param="logit_bias")
        out[str(token)] = float(value)
    return out


def props(service: Service, name: str) -> dict[str, Any]:
    """GET /props of the model called ``name``, which stands for its path too: paths are not told."""
    config = service.config
    defaults: SamplingParams = service.defaults_with()
    source = "" if service.template is None else service.template.source
    tool_source = "" if service.template is None else service.template.with_tools.source
    return {
        "default_generation_settings": {"n_ctx": config.max_model_len, "params": settings(defaults)},
        "total_slots": config.max_seqs,
        "model_alias": name,
        "model_path": name,
        "chat_template": source,
        **({} if tool_source == source else {"chat_template_tool_use": tool_source}),
        "modalities": {"vision": False, "audio": False},
        "bos_token": _token(service, service.tokenizer.bos_id),
        "eos_token": _token(service, service.tokenizer.eos_id),
        "build_info": f"spola {__version__}",
    }


def _token(service: Service, id: int | None) -> str:
    return "" if id is None else service.tokenizer.token_text(id)
