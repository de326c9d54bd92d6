"""From a request's body to what the engine needs: ids, sampling settings and the shape of the answer.

One way in for HTTP, for batch files and for routes that speak other protocols. Parses, checks and tokenizes;
sends nothing. Any thread may call it; it can take a while, so not the event loop's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from spola.core.errors import RequestError
from spola.core.params import MAX_N, SamplingParams
from spola.runtime.explain import BEST, check_explained
from spola.runtime.service import Service
from spola.runtime.turn import Asked, prepare_turn
from spola.server.constraints import constraint
from spola.server.errors import ApiError
from spola.server.fields import ChatRequest, CommonRequest, CompletionRequest
from spola.server.replies import ChatShape, CompletionShape
from spola.server.schema import decode, parse_object, plain
from spola.server.shape import Echo, Shape, Style
from spola.text.grammar import Grammar

__all__ = ["ASKS", "Ask", "Body", "Terms", "chat_ask", "completion_ask", "fingerprint"]

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPTS = 1024
MAX_CHOICES = 4096  # of all prompts together
MAX_LEGACY_LOGPROBS = 5
MAX_TIMEOUT_S = 86400.0
MAX_EXPLAINED = 128  # tokens of an explained answer: each takes tens of milliseconds of the processor

Body = bytes | Mapping[str, Any]

# Fields that mean the same in SamplingParams.
_AS_GIVEN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logprobs_mode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the server adds to a request: the name its model goes by, which adapter is used, whether unknown
    fields are refused, and whose request it is.
    """

    model: str
    adapter: str | None = None
    strict: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A checked request. ``stream``: the answer is wanted in pieces. ``how``: more for ``Service.submit``.

    ``prompts`` is more than one for a completion of several; a chat has one. ``unknown``: fields of the body
    that nobody knows, to be told in the answer's head. ``explain``: an explanation is wanted after it.
    """

    prompts: tuple[list[int], ...]
    params: SamplingParams
    shape: Shape
    stream: bool
    how: Mapping[str, Any]
    unknown: tuple[str, ...] = ()
    explain: bool = False


def completion_ask(service: Service, terms: Terms, body: Body) -> Ask:
    """A body for /v1/completions. Raises ApiError or SpolaError naming the field."""
    parsed = parse_object(_object(body), CompletionRequest, strict=terms.strict)
    request = parsed.request
    terms = _chosen(service, terms, request.model)
    prompts, texts = _prompts(service, request)
    limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    only = limit == 0 and bool(request.echo)
    n = 1 if request.n is None else request.n
    best_of = n if request.best_of is None else request.best_of
    _check_best_of(request, n, best_of)
    top = request.logprobs
    if top is not None and not 0 <= top <= MAX_LEGACY_LOGPROBS:
        raise ApiError(
            400, f"logprobs must be between 0 and {MAX_LEGACY_LOGPROBS}, not {top}", param="logprobs"
        )
    if request.echo and request.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs: with echo, logprobs lists the prompt", param="prompt_logprobs")
    params = _params(
        service,
        request,
        n=best_of,
        max_tokens=1 if only else limit,
        logprobs=0 if top is None and best_of > n else top,
        prompt_logprobs=top if request.echo else request.prompt_logprobs,
    )
    if len(prompts) * params.n > MAX_CHOICES:
        raise ApiError(400, f"prompt and n ask for more than {MAX_CHOICES} choices", param="n")
    for ids in prompts:
        service.check(ids, params)
    grammar = _grammar(service, request)
    if request.explain:
        if len(prompts) > 1 or request.echo:
            raise ApiError(400, "explain is of one prompt's answer, without echo", param="explain")
        params = _explained(request, params, constrained=grammar is not None)
    return Ask(
        prompts=prompts,
        params=params,
        shape=CompletionShape(
            _style(service, terms, request, params, top),
            echo=Echo(texts, only) if request.echo else None,
            n=n,
        ),
        stream=bool(request.stream),
        how=_how(terms, request) | {"grammar": grammar},
        unknown=parsed.unknown,
        explain=bool(request.explain),
    )


def chat_ask(service: Service, terms: Terms, body: Body) -> Ask:
    """A body for /v1/chat/completions. Raises ApiError or SpolaError naming the field."""
    parsed = parse_object(_object(body), ChatRequest, strict=terms.strict)
    request = parsed.request
    terms = _chosen(service, terms, request.model)
    if not request.messages:
        raise ApiError(400, "messages is empty", param="messages")
    newer, older = request.max_completion_tokens, request.max_tokens
    if older is not None and newer is not None:
        raise ApiError(
            400, "give max_completion_tokens or max_tokens, not both", param="max_completion_tokens"
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs true", param="top_logprobs")
    top = (request.top_logprobs or 0) if request.logprobs else None
    if top is not None and not 0 <= top <= 20:
        raise ApiError(400, f"top_logprobs must be between 0 and 20, not {top}", param="top_logprobs")
    turn = prepare_turn(service, _asked(request))
    unknown = (*parsed.unknown, *turn.unused)
    if turn.unused and terms.strict:
        raise ApiError(400, f"{turn.unused[0]}: this model's template does not read it", param=turn.unused[0])
    params = _params(
        service,
        request,
        n=request.n,
        max_tokens=older if newer is None else newer,
        logprobs=top,
        prompt_logprobs=request.prompt_logprobs,
    )
    service.check(turn.ids, params)
    if request.explain:
        params = _explained(request, params, constrained=turn.grammar is not None)
    return Ask(
        prompts=(turn.ids,),
        params=params,
        shape=ChatShape(
            _style(service, terms, request, params, top, turn.visible),
            reader=turn.reader,
            reasoning=request.include_reasoning is not False,
        ),
        stream=bool(request.stream),
        how=_how(terms, request) | {"grammar": turn.grammar, "visible": turn.visible},
        unknown=unknown,
        explain=bool(request.explain),
    )


def _asked(request: ChatRequest) -> Asked:
    if request.continue_final_message and request.add_generation_prompt:
        raise ApiError(
            400,
            "give continue_final_message or add_generation_prompt, not both",
            param="continue_final_message",
        )
    form, field = constraint(request)
    return Asked(
        messages=[plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)],
        tools=request.tools or (),
        tool_choice=request.tool_choice,
        parallel=request.parallel_tool_calls,
        form=form,
        form_field=field,
        variables=request.chat_template_kwargs or {},
        effort=request.reasoning_effort,
        open_turn=request.add_generation_prompt is not False,
        continue_final=bool(request.continue_final_message),
    )


ASKS: dict[str, Callable[[Service, Terms, Body], Ask]] = {
    "/v1/completions": completion_ask,
    "/v1/chat/completions": chat_ask,
}


def _object(body: Body) -> dict[str, Any]:
    return decode(body) if isinstance(body, bytes) else dict(body)


def _chosen(service: Service, terms: Terms, asked: str | None) -> Terms:
    """The terms for the model asked for: the server's own, or one of its adapters by name."""
    if asked is None or asked == terms.model:
        return terms
    if asked in service.config.adapters:
        return replace(terms, model=asked, adapter=asked)
    names = ", ".join(repr(name) for name in (terms.model, *service.config.adapters))
    raise ApiError(
        404,
        f"there is no model {asked[:100]!r}; this server has {names}",
        param="model",
        code="model_not_found",
    )


def _prompts(service: Service, request: CompletionRequest) -> tuple[tuple[list[int], ...], tuple[str, ...]]:
    """The ids of every prompt, and its text as echo shows it."""
    given = request.prompt
    if isinstance(given, list) and not given:
        raise ApiError(400, "prompt is an empty list", param="prompt")
    many = isinstance(given, list) and not all(_number(item) for item in given)
    listed: list[Any] = given if many and isinstance(given, list) else [given]
    if len(listed) > MAX_PROMPTS:
        raise ApiError(400, f"prompt has {len(listed)} prompts; {MAX_PROMPTS} at most", param="prompt")
    ids, texts = [], []
    for place, item in enumerate(listed):
        where = f"prompt[{place}]" if many else "prompt"
        if not isinstance(item, str) and not (isinstance(item, list) and all(_number(i) for i in item)):
            raise ApiError(400, f"{where} must be a text or a list of token ids", param="prompt")
        try:
            found = service.prompt_ids(item, add_special=request.add_special_tokens is not False)
        except RequestError as error:
            raise ApiError(error.status, f"{where}: {error}", param="prompt", code=error.code) from None
        if not found:
            raise ApiError(400, f"{where} is empty", param="prompt")
        ids.append(found)
        texts.append(item if isinstance(item, str) else service.tokenizer.decode(found, skip_special=False))
    return tuple(ids), tuple(texts)


def _number(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _check_best_of(request: CompletionRequest, n: int, best_of: int) -> None:
    if best_of > MAX_N:
        raise ApiError(400, f"best_of must be between 1 and {MAX_N}, not {best_of}", param="best_of")
    if best_of < n:
        raise ApiError(400, f"best_of ({best_of}) must be at least n ({n})", param="best_of")
    if best_of > n and request.stream:
        raise ApiError(400, "best_of above n cannot be streamed", param="best_of")


def _params(service: Service, request: CommonRequest, **given: Any) -> SamplingParams:
    stop = () if request.stop is None else request.stop
    if request.stream and request.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs is not possible in a stream", param="prompt_logprobs")
    return service.defaults_with(
        **{name: getattr(request, name) for name in _AS_GIVEN},
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        bad_words=tuple(request.bad_words or ()),
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        logit_bias=_biases(request.logit_bias),
        **given,
    )


def _explained(request: CommonRequest, params: SamplingParams, *, constrained: bool) -> SamplingParams:
    """``params`` of an answer that is explained. Raises ApiError for one that cannot be."""
    check_explained(params, constrained=constrained)
    asked = params.max_tokens
    if asked is not None and asked > MAX_EXPLAINED:
        raise ApiError(
            400, f"explain is of at most {MAX_EXPLAINED} tokens; max_tokens is {asked}", param="explain"
        )
    return msgspec.structs.replace(
        params, max_tokens=asked or MAX_EXPLAINED, logprobs=max(BEST, params.logprobs or 0)
    )


def _biases(given: dict[str, float] | None) -> dict[int, float] | None:
    out: dict[int, float] = {}
    for name, value in (given or {}).items():
        if not name.isascii() or not name.isdigit() or len(name) > 10:
            raise ApiError(400, f"logit_bias: {name[:40]!r} is no token id", param="logit_bias")
        out[int(name)] = value
    return out or None


def _how(terms: Terms, request: CommonRequest) -> dict[str, Any]:
    if request.priority is not None and abs(request.priority) > 2**31:
        raise ApiError(400, "priority must fit 32 bits", param="priority")
    timeout = request.timeout
    if timeout is not None and not 0 < timeout <= MAX_TIMEOUT_S:
        raise ApiError(400, f"timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds", param="timeout")
    return {
        "priority": request.priority or 0,
        "cache_salt": request.cache_salt,
        "adapter": terms.adapter,
        "key": terms.key,
        "timeout_s": timeout,
        "follow": bool(request.explain),
    }


def _grammar(service: Service, request: CommonRequest) -> Grammar | None:
    wanted, field = constraint(request)
    return None if wanted is None else service.grammars.of(wanted, field)


def _style(
    service: Service,
    terms: Terms,
    request: CommonRequest,
    params: SamplingParams,
    top: int | None,
    visible: frozenset[int] = frozenset(),
) -> Style:
    options = request.stream_options
    return Style(
        model=terms.model,
        fingerprint=fingerprint(service),
        tokenizer=service.tokenizer,
        params=params,
        top=top,
        include_usage=options is not None and bool(options.include_usage or options.continuous_usage_stats),
        running_usage=options is not None and bool(options.continuous_usage_stats),
        token_ids=bool(request.return_token_ids),
        visible=visible,
    )


def fingerprint(service: Service) -> str:
    """What the bits of every answer depend on: backend, weights, types of activations, K and V."""
    config = service.config
    parts = msgspec.json.encode([config.fingerprint, config.precise, config.kv_dtypes])
    return f"{config.backend}-{hashlib.blake2b(parts, digest_size=8).hexdigest()}"
