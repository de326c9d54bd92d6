"""What ``LLM`` gives back. Names and meaning of the fields are vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spola.core.step import TokenLogprob
from spola.engine.events import Summary
from spola.runtime.answer import Choice, Job
from spola.text.parts import Reader
from spola.text.tokenizer import Tokenizer

__all__ = [
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "StreamOutput",
    "Timing",
    "ToolCall",
    "output_of",
    "timing_of",
]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of the raw probability; ``rank`` from 1, None beyond the alternatives asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the request arrived: to the first token, and in all; per token after the first.

    ``queue_s``: until it was first admitted. ``longest_gap_s``: between two pieces of the answer.
    ``preemptions``: how often it gave its place away and was computed again.
    """

    ttft_s: float | None
    latency_s: float
    tpot_s: float | None
    queue_s: float | None = None
    longest_gap_s: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls; ``arguments`` is the JSON text of an object, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice. ``logprobs[i]`` maps ids to Logprob for token i, the chosen one first.

    ``finish_reason``: stop, length, abort or error; ``stop_reason``: the stop string or stop token id. Of a
    chat, ``text`` is all that the model wrote; ``content``, ``reasoning`` and ``tool_calls`` what it says.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    timing: Timing | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its choices. ``prompt`` is None when ids were given.

    ``prompt_logprobs[i]`` is of prompt token i, given those before it; None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """A piece of one choice's answer: new text and ids, and the finish reason with the last piece."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None


def output_of(
    request_id: str,
    prompt: str | None,
    job: Job,
    tokenizer: Tokenizer,
    reader: Callable[[], Reader] | None = None,
) -> RequestOutput:
    """The ``job`` as vLLM shows it, as far as it is; ``reader`` is for the answers of a chat."""
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=list(job.prompt_ids),
        outputs=[_completion(choice, job.params.logprobs, tokenizer, reader) for choice in job.choices],
        finished=job.done,
        num_cached_tokens=job.cached_tokens,
        prompt_logprobs=_prompt(job, tokenizer),
    )


def timing_of(summary: Summary | None, tokens: int) -> Timing | None:
    """Times of a finished choice with ``tokens`` tokens."""
    if summary is None:
        return None
    first, end = summary.first_token_s, summary.finished_s
    return Timing(
        ttft_s=summary.ttft_s,
        latency_s=summary.latency_s,
        tpot_s=(end - first) / (tokens - 1) if first is not None and tokens > 1 else None,
        queue_s=summary.queue_s,
        longest_gap_s=summary.longest_gap_s,
        preemptions=summary.preemptions,
    )


def _prompt(job: Job, tokenizer: Tokenizer) -> list[dict[int, Logprob] | None] | None:
    if job.params.prompt_logprobs is None:
        return None
    return [None, *(_table(entry, tokenizer) for entry in job.choices[0].prompt_logprobs)]


def _completion(
    choice: Choice, wanted: int | None, tokenizer: Tokenizer, reader: Callable[[], Reader] | None
) -> CompletionOutput:
    logprobs = None
    cumulative = None
    if wanted is not None:
        logprobs = [_table(entry, tokenizer) for entry in choice.logprobs]
        cumulative = sum(entry.logprob for entry in choice.logprobs)
    said: dict[str, str] = {}
    calls: list[ToolCall] = []
    if reader is not None:
        said, calls = _read(reader(), choice.text, ended=choice.finish_reason is not None)
    return CompletionOutput(
        content=said.get("content"),
        reasoning=said.get("reasoning"),
        tool_calls=calls,
        index=choice.index,
        text=choice.text,
        token_ids=list(choice.token_ids),
        logprobs=logprobs,
        cumulative_logprob=cumulative,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        error=None if choice.error is None else str(choice.error),
        timing=timing_of(choice.summary, len(choice.token_ids)),
    )


def _read(reader: Reader, text: str, *, ended: bool) -> tuple[dict[str, str], list[ToolCall]]:
    """Content and reasoning, where there are any, and the calls."""
    said: dict[str, str] = {}
    calls: list[tuple[str, str]] = []
    for part in [*reader.push(text), *(reader.finish() if ended else ())]:
        if part.kind == "call":
            calls.append((part.name, ""))
        elif part.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
        else:
            said[part.kind] = said.get(part.kind, "") + part.text
    if not calls:
        said.setdefault("content", "")
    return said, [ToolCall(name, arguments) for name, arguments in calls]


def _table(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[int, Logprob]:
    def text(token: int) -> str:
        # The raw distribution also has the rows that only pad the vocabulary; they have no text.
        return tokenizer.token_text(token) if token < tokenizer.vocab_size else ""

    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
    rows = {entry.id: Logprob(entry.logprob, ranks.get(entry.id), text(entry.id))}
    for token, value in entry.top:
        rows.setdefault(token, Logprob(value, ranks[token], text(token)))
    return rows
