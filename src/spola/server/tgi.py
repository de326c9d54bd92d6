"""POST /generate, /generate_stream and /, GET /info: the protocol of text-generation-inference (TGI).

Bodies become those of a completion; nothing is generated here. The answer's words are in ``tgi_reply``.
Fields as in TGI's openapi.json. A wrong request is 400 here as everywhere in this server, where TGI says 422.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola import __version__
from spola.core.params import MAX_LOGPROBS, MAX_STOPS
from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Ask, Body, Terms, completion_ask
from spola.server.borrowed import Table, in_words, object_of
from spola.server.errors import ApiError
from spola.server.pieces import PieceShape
from spola.server.tgi_reply import TgiReply, Wanted
from spola.server.translate import translated

__all__ = ["TgiRequest", "info", "model_of_tgi", "tgi_compatible", "tgi_generate", "tgi_stream"]

NEW_TOKENS = 100  # TGI's default


def _of(text: str) -> Meta:
    return Meta(description=text)


class TgiGrammar(msgspec.Struct, kw_only=True):
    """``grammar`` of the parameters."""

    type: Annotated[Literal["json", "regex", "json_schema"], _of("What value is.")]
    value: Annotated[Any, _of("A JSON schema, or a regular expression.")]


class TgiParameters(msgspec.Struct, kw_only=True):
    """``parameters`` of a request."""

    adapter_id: Annotated[str | None, _of("The name of an adapter (--lora); not with model.")] = None
    max_new_tokens: Annotated[int | None, _of("Tokens to generate, at most; absent: 100.")] = None
    do_sample: Annotated[bool | None, _of("Draw, at temperature 1 unless it is given.")] = None
    temperature: Annotated[float | None, _of("0 is greedy; absent: greedy, unless something samples.")] = None
    top_k: Annotated[int | None, _of("0 is off.")] = None
    top_p: Annotated[float | None, _of("Above 0, at most 1.")] = None
    seed: Annotated[int | None, _of("Same seed, same answer.")] = None
    repetition_penalty: Annotated[float | None, _of("Above 0; 1 is off.")] = None
    frequency_penalty: Annotated[float | None, _of("-2 to 2; counts what was generated.")] = None
    stop: Annotated[list[str] | None, _of("Up to 16 texts; the one that ends the answer is part of it.")] = (
        None
    )
    truncate: Annotated[int | None, _of("Keep the last so many tokens of the inputs.")] = None
    return_full_text: Annotated[bool | None, _of("The inputs before the generated text.")] = None
    details: Annotated[bool | None, _of("Tokens with their log-probabilities.")] = None
    decoder_input_details: Annotated[bool | None, _of("The inputs' tokens too; not in streams.")] = None
    top_n_tokens: Annotated[int | None, _of("So many alternatives per token, up to 20.")] = None
    grammar: Annotated[TgiGrammar | None, _of("The form that the answer has.")] = None


class TgiRequest(msgspec.Struct, kw_only=True):
    """A body for /generate, /generate_stream and /."""

    inputs: Annotated[str, _of("A text; special tokens in it are read.")]
    parameters: Annotated[TgiParameters | None, _of("Sampling, limits and what is told.")] = None
    stream: Annotated[bool | None, _of("Server-sent events; /generate_stream always streams.")] = None
    model: Annotated[str | None, _of("One of the served models; absent: the default one.")] = None


_PARAMETERS = Table(
    refused={
        "best_of": ("ask /v1/completions, which has best_of", (0, 1)),
        "typical_p": ("use top_p", (1,)),
        "watermark": ("answers are not marked", (False,)),
    }
)
_AS_GIVEN = ("top_k", "top_p", "seed", "repetition_penalty", "frequency_penalty")
_NAMES = {
    "prompt": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "logprobs": "parameters.top_n_tokens",
    "json_schema": "parameters.grammar.value",
    "guided_regex": "parameters.grammar.value",
    **{name: f"parameters.{name}" for name in (*_AS_GIVEN, "temperature", "stop")},
}


def model_of_tgi(body: Body) -> str | None:
    """What a body asks for: an adapter in its parameters, or a model."""
    try:
        raw = object_of(body)
    except ApiError:
        return None  # the endpoint says what is wrong
    inner = raw.get("parameters")
    adapter = inner.get("adapter_id") if isinstance(inner, Mapping) else None
    name = raw.get("model") if adapter is None else adapter
    return name if isinstance(name, str) else None


async def tgi_generate(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /generate."""
    return await _answer(desk, terms, http, object_of(body), listed=False)


async def tgi_stream(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /generate_stream."""
    raw = object_of(body)
    if raw.get("stream") is False:
        raise ApiError(400, "stream: this route streams; ask /generate", param="stream")
    return await _answer(desk, terms, http, {**raw, "stream": True}, listed=False)


async def tgi_compatible(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /: as /generate, but a whole answer is in a list."""
    return await _answer(desk, terms, http, object_of(body), listed=True)


async def _answer(desk: Desk, terms: Terms, http: Request, raw: dict[str, Any], *, listed: bool) -> Response:
    ask, wanted = await asyncio.to_thread(_ask, desk.service, terms, raw)
    return await translated(desk, http, ask, TgiReply(replace(wanted, listed=listed)))


def _ask(service: Service, terms: Terms, raw: dict[str, Any]) -> tuple[Ask, Wanted]:
    rest = {name: value for name, value in raw.items() if name != "parameters"}
    given = raw.get("parameters")
    inner = _PARAMETERS.take(
        {} if given is None else given, TgiParameters, strict=terms.strict, place="parameters."
    )
    taken = Table().take(rest, TgiRequest, strict=terms.strict)
    request, parameters = taken.request, inner.request
    if request.model is not None and parameters.adapter_id is not None:
        said = "parameters.adapter_id: model already says which model answers"
        raise ApiError(400, said, param="parameters.adapter_id")
    if request.stream and parameters.decoder_input_details:
        said = "parameters.decoder_input_details is not possible in a stream"
        raise ApiError(400, said, param="parameters.decoder_input_details")
    with in_words(_NAMES):
        ask = completion_ask(service, terms, _body(service, request, parameters))
    top = _top(parameters.top_n_tokens)
    details = bool(parameters.details or parameters.decoder_input_details)
    first = 0 if parameters.decoder_input_details else None
    params = msgspec.structs.replace(ask.params, logprobs=top, prompt_logprobs=first)
    shape = PieceShape(replace(ask.shape.style, top=top, params=params))
    ask = replace(ask, params=params, shape=shape, unknown=(*inner.unused, *taken.unused))
    wanted = Wanted(
        tokenizer=service.tokenizer,
        prompt=request.inputs if parameters.return_full_text else "",
        details=details,
        prefill=bool(parameters.decoder_input_details),
        top=top,
        seed=parameters.seed,
    )
    return ask, wanted


def _top(asked: int | None) -> int:
    top = asked or 0
    if not 0 <= top <= MAX_LOGPROBS:
        place = "parameters.top_n_tokens"
        raise ApiError(400, f"{place} must be between 0 and {MAX_LOGPROBS}, not {top}", param=place)
    return top


def _body(service: Service, request: TgiRequest, parameters: TgiParameters) -> dict[str, Any]:
    out: dict[str, Any] = {name: getattr(parameters, name) for name in _AS_GIVEN}
    draws = parameters.do_sample or parameters.top_k is not None or parameters.top_p is not None
    temperature = parameters.temperature
    if temperature is None:
        temperature = 1.0 if draws else 0.0
    limit = parameters.max_new_tokens
    out |= {
        "prompt": _prompt(service, request.inputs, parameters.truncate),
        "temperature": temperature,
        "max_tokens": NEW_TOKENS if limit is None else limit,
        "stop": parameters.stop,
        "include_stop_str_in_output": True,
        "stream": request.stream,
        **_form(parameters.grammar),
    }
    return out


def _prompt(service: Service, inputs: str, truncate: int | None) -> str | list[int]:
    if truncate is None:
        return inputs
    if truncate < 1:
        place = "parameters.truncate"
        raise ApiError(400, f"{place} must be at least 1, not {truncate}", param=place)
    return service.prompt_ids(inputs)[-truncate:]


def _form(grammar: TgiGrammar | None) -> dict[str, Any]:
    if grammar is None:
        return {}
    if grammar.type == "regex":
        return {"guided_regex": grammar.value}
    value, place = grammar.value, "parameters.grammar.value"
    if grammar.type == "json_schema":
        if not isinstance(value, Mapping) or "schema" not in value:
            raise ApiError(400, f"{place} must be an object with a schema", param=place)
        value = value["schema"]
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise ApiError(400, f"{place} is no JSON", param=place) from None
    return {"json_schema": value}


def info(service: Service, name: str, live: int | None) -> dict[str, Any]:
    """GET /info of the model called ``name``; ``live`` requests are held at most, running or waiting."""
    config = service.config
    return {
        "model_id": name,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "model_dtype": None,
        "model_device_type": config.device,
        "max_concurrent_requests": config.max_seqs if live is None else live,
        "max_best_of": 1,
        "max_stop_sequences": MAX_STOPS,
        "max_input_tokens": config.max_model_len - 1,
        "max_total_tokens": config.max_model_len,
        "validation_workers": 1,
        "max_client_batch_size": 1,
        "router": "spola",
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
