"""POST /api/chat, /api/generate and /api/embed: Ollama's protocol over the chat route.

Bodies become those of a chat or a completion; nothing is generated here. The answer's words are in
``ollama_reply``. Fields as in Ollama's docs/api.md and its Python client; ``temperature`` and the like have
this server's defaults, not Ollama's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Ask, Body, Terms, chat_ask, completion_ask
from spola.server.borrowed import Table, check_window, in_words, object_of, within
from spola.server.embeddings import MAX_INPUTS, embed, unit
from spola.server.errors import ApiError, json_response
from spola.server.generate import UNKNOWN_FIELDS
from spola.server.ollama_messages import chat_messages, chat_tools
from spola.server.ollama_reply import OllamaReply, loaded
from spola.server.schema import reported
from spola.server.translate import LineStream, translated

__all__ = ["EmbedRequest", "GenerateRequest", "OllamaChatRequest", "embed_route", "generate", "ollama_chat"]


def _of(text: str) -> Meta:
    return Meta(description=text)


class OllamaOptions(msgspec.Struct, kw_only=True):
    """``options`` of a request."""

    temperature: Annotated[float | None, _of("0 is greedy. Absent: the model's own, else 0.")] = None
    top_k: Annotated[int | None, _of("0 is off.")] = None
    top_p: Annotated[float | None, _of("Above 0, at most 1.")] = None
    min_p: Annotated[float | None, _of("From 0 to 1.")] = None
    seed: Annotated[int | None, _of("Same seed, same answer.")] = None
    num_predict: Annotated[int | None, _of("Tokens to generate, at most; below 0: as many as fit.")] = None
    num_ctx: Annotated[int | None, _of("Tokens of prompt and answer, at most.")] = None
    repeat_penalty: Annotated[float | None, _of("Counts prompt and answer; 1 is off.")] = None
    repeat_last_n: Annotated[int | None, _of("-1 with penalties: they count the whole text.")] = None
    presence_penalty: Annotated[float | None, _of("-2 to 2.")] = None
    frequency_penalty: Annotated[float | None, _of("-2 to 2.")] = None
    stop: Annotated[str | list[str] | None, _of("Up to 16 non-empty strings.")] = None


class _Common(msgspec.Struct, kw_only=True):
    model: Annotated[str, _of("One of the served models; :latest may follow.")]
    options: Annotated[OllamaOptions | None, _of("Sampling and limits.")] = None


class _Generating(_Common, kw_only=True):
    stream: Annotated[bool | None, _of("A line of JSON for each piece; absent: true.")] = None
    format: Annotated[str | dict[str, Any] | None, _of("json, or a JSON schema.")] = None
    think: Annotated[bool | str | None, _of("Whether to think, or low, medium, high.")] = None
    logprobs: Annotated[bool | None, _of("Log-probabilities of the answer's tokens.")] = None
    top_logprobs: Annotated[int | None, _of("0 to 20 alternatives per token; needs logprobs.")] = None


class OllamaChatRequest(_Generating, kw_only=True):
    """POST /api/chat."""

    messages: Annotated[list[Any] | None, _of("system, user, assistant, tool. Empty: load the model.")] = None
    tools: Annotated[list[Any] | None, _of("Functions that the model may call.")] = None


class GenerateRequest(_Generating, kw_only=True):
    """POST /api/generate."""

    prompt: Annotated[str | None, _of("What to answer. Empty: load the model.")] = None
    system: Annotated[str | None, _of("A system message before it.")] = None
    raw: Annotated[bool | None, _of("True: no template, the prompt goes on as it is.")] = None


class EmbedRequest(_Common, kw_only=True):
    """POST /api/embed."""

    input: Annotated[str | list[str], _of("A text or several.")]
    truncate: Annotated[bool | None, _of("False: an input that is too long is refused, not cut.")] = None
    dimensions: Annotated[int | None, _of("Keep the first so many, scaled to length 1.")] = None


_BODY = Table(
    refused={
        "images": ("this model takes text only", ([],)),
        "template": ("a request brings no template of its own; start with --chat-template", ("",)),
        "context": ("send the conversation to /api/chat as messages", ([],)),
        "suffix": ("there is no filling in of the middle", ("",)),
        "shift": ("a context is not shifted; the answer ends when it is full", (False,)),
        "truncate": ("a prompt is not cut; shorten it", (False,)),
        **dict.fromkeys(("width", "height", "steps"), ("there are no images here", ())),
    },
    idle=("keep_alive",),  # models stay until their memory is needed
)
_EMBED = Table(idle=("keep_alive",))
_OPTIONS = Table(
    refused={
        "typical_p": ("use top_p or min_p", (1,)),
        "tfs_z": ("use top_p or min_p", (1,)),
        "mirostat": ("use temperature, top_p or min_p", (0,)),
        "penalize_newline": ("penalties count every token", (True,)),
        "vocab_only": ("the model is loaded", (False,)),
        "embedding_only": ("the model is loaded", (False,)),
        "draft_num_predict": ("speculation is the server's own (--speculate)", (0,)),
    },
    # How the model is loaded and computed is said when the server starts.
    idle=(
        *("mirostat_tau", "mirostat_eta", "num_keep", "numa", "num_batch", "num_gpu", "main_gpu"),
        *("low_vram", "f16_kv", "logits_all", "use_mmap", "use_mlock", "num_thread"),
    ),
)
_AS_GIVEN = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
_NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "json_schema": "format",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
    **{name: f"options.{name}" for name in (*_AS_GIVEN, "stop")},
}


async def ollama_chat(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /api/chat."""
    return await _generate(desk, terms, http, body, OllamaChatRequest)


async def generate(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /api/generate."""
    return await _generate(desk, terms, http, body, GenerateRequest)


async def _generate(
    desk: Desk, terms: Terms, http: Request, body: Body, kind: type[OllamaChatRequest | GenerateRequest]
) -> Response:
    raw = object_of(body)
    chat = kind is OllamaChatRequest
    ask = await asyncio.to_thread(_ask, desk.service, terms, raw, kind)
    if ask is None:
        return json_response(loaded(terms.model, chat=chat))
    return await translated(desk, http, ask, OllamaReply(terms.model, chat=chat), LineStream)


def _ask(
    service: Service, terms: Terms, raw: dict[str, Any], kind: type[OllamaChatRequest | GenerateRequest]
) -> Ask | None:
    """None: nothing is to be generated, the model was only to be loaded."""
    options, unused, rest = _options(raw, terms)
    taken = _BODY.take(rest, kind, strict=terms.strict)
    request = taken.request
    wanted = request.messages if isinstance(request, OllamaChatRequest) else request.prompt
    if not wanted:
        _check_unload(raw.get("keep_alive"))
        return None
    common = _sampling(options) | _form(request.format)
    common["stream"] = request.stream is not False
    with in_words(_NAMES):
        if isinstance(request, GenerateRequest) and request.raw:
            ask = _raw_ask(service, terms, request, common)
        else:
            ask = chat_ask(service, terms, _chat_body(request, common))
    ask = within(ask, options.num_ctx, service.config.max_model_len, "options.num_ctx")
    thinking = {"chat_template_kwargs.enable_thinking": "think", "reasoning_effort": "think"}
    return replace(ask, unknown=(*unused, *taken.unused, *(thinking.get(one, one) for one in ask.unknown)))


def _options(raw: Mapping[str, Any], terms: Terms) -> tuple[OllamaOptions, tuple[str, ...], dict[str, Any]]:
    """``options`` checked, those without effect, and the body without them."""
    rest = {name: value for name, value in raw.items() if name != "options"}
    given = raw.get("options")
    taken = _OPTIONS.take(
        {} if given is None else given, OllamaOptions, strict=terms.strict, place="options."
    )
    return taken.request, taken.unused, rest


def _sampling(options: OllamaOptions) -> dict[str, Any]:
    penalties = (options.repeat_penalty, options.presence_penalty, options.frequency_penalty)
    check_window(options.repeat_last_n, penalties, "options.repeat_last_n")
    out: dict[str, Any] = {name: getattr(options, name) for name in _AS_GIVEN}
    out["repetition_penalty"] = options.repeat_penalty
    out["stop"] = options.stop or None
    limit = options.num_predict
    if limit == 0:
        raise ApiError(400, "options.num_predict must not be 0", param="options.num_predict")
    out["max_tokens"] = limit if limit is not None and limit > 0 else None
    return out


def _form(format: str | dict[str, Any] | None) -> dict[str, Any]:
    if format is None or format == "":
        return {}
    if format == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(format, str):
        raise ApiError(400, f"format {format[:40]!r} is neither json nor a schema", param="format")
    return {"json_schema": format}


def _chat_body(request: OllamaChatRequest | GenerateRequest, common: dict[str, Any]) -> dict[str, Any]:
    chat = {**common, **_thinking(request.think)}
    if isinstance(request, OllamaChatRequest):
        chat["messages"] = chat_messages(request.messages or ())
        if request.tools:
            chat["tools"] = chat_tools(request.tools)
    else:
        system = [{"role": "system", "content": request.system}] if request.system else []
        chat["messages"] = [*system, {"role": "user", "content": request.prompt}]
    chat |= {"logprobs": request.logprobs, "top_logprobs": request.top_logprobs}
    return {name: value for name, value in chat.items() if value is not None}


def _raw_ask(service: Service, terms: Terms, request: GenerateRequest, common: dict[str, Any]) -> Ask:
    for name in ("system", "think"):
        if getattr(request, name):
            raise ApiError(400, f"{name}: with raw there is no template", param=name)
    if request.logprobs or request.top_logprobs:
        raise ApiError(400, "logprobs: with raw ask /v1/completions", param="logprobs")
    most = service.config.max_model_len
    body = {**common, "prompt": request.prompt, "max_tokens": common["max_tokens"] or most}
    return completion_ask(service, terms, body)


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    if think not in ("low", "medium", "high"):
        raise ApiError(400, f"think {think[:40]!r} is none of true, false, low, medium, high", param="think")
    return {"reasoning_effort": think}


def _check_unload(keep_alive: Any) -> None:
    if keep_alive in (0, "0", "0s", "0m"):
        said = "keep_alive 0 is not supported: a model stays until its memory is needed"
        raise ApiError(400, said, param="keep_alive")


async def embed_route(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /api/embed."""
    start = time.monotonic_ns()
    raw = object_of(body)
    request, prompts, unused = await asyncio.to_thread(_embed, desk.service, terms, raw)
    vectors = await embed(desk, http, prompts, "mean", terms.adapter)
    if vectors is None:
        return Response(status_code=499)
    answer = {
        "model": terms.model,
        "embeddings": [
            unit(one[: request.dimensions] if request.dimensions else one).tolist() for one in vectors
        ],
        "total_duration": time.monotonic_ns() - start,
        "load_duration": 0,
        "prompt_eval_count": sum(map(len, prompts)),
    }
    return json_response(answer, headers={UNKNOWN_FIELDS: reported(unused)} if unused else None)


def _embed(
    service: Service, terms: Terms, raw: dict[str, Any]
) -> tuple[EmbedRequest, list[list[int]], tuple[str, ...]]:
    options, unused, rest = _options(raw, terms)
    taken = _EMBED.take(rest, EmbedRequest, strict=terms.strict)
    request, hidden = taken.request, service.spec.hidden
    if request.dimensions is not None and not 1 <= request.dimensions <= hidden:
        said = f"dimensions must be from 1 to {hidden}, not {request.dimensions}"
        raise ApiError(400, said, param="dimensions")
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not 1 <= len(texts) <= MAX_INPUTS or not all(texts):
        raise ApiError(400, f"input must have 1 to {MAX_INPUTS} texts, none empty", param="input")
    most = service.config.max_model_len
    if options.num_ctx is not None and not 0 < options.num_ctx <= most:
        said = f"options.num_ctx must be from 1 to {most}, not {options.num_ctx}"
        raise ApiError(400, said, param="options.num_ctx")
    room = min(options.num_ctx or most, most - 1)
    cut = request.truncate is not False
    with in_words({"prompt": "input"}):
        prompts = [_ids(service, text, room, cut) for text in texts]
    return request, prompts, (*unused, *taken.unused)


def _ids(service: Service, text: str, room: int, cut: bool) -> list[int]:
    """At most ``room`` ids of ``text``; a text that has more is cut, or refused."""
    if cut:
        least = service.tokenizer.least_tokens(text)
        if least > room:  # far too long to be worth tokenizing: what is left still has ``room`` tokens
            text = text[: len(text) * room // least]
    ids = service.prompt_ids(text)
    if len(ids) > room and not cut:
        said = f"input has {len(ids)} tokens; {room} fit; leave out truncate to have it cut"
        raise ApiError(400, said, param="input", code="context_length_exceeded")
    return ids[:room]
