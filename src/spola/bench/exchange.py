"""One streamed request to an OpenAI-compatible server: its body, and the Sample made of its answer."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spola.bench.http import Pool

__all__ = ["Call", "EventReader", "Sample", "ask"]

_MOST_ERROR = 2000  # bytes kept of an answer that is an error


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it is sent: the path after ``/v1`` and the JSON body."""

    path: str
    body: bytes


@dataclass(slots=True)
class Sample:
    """What came of one request; times are ``time.perf_counter()``, 0 where nothing came.

    ``intended`` is when it should have been sent, ``events`` when each event with text arrived, ``end`` the
    last event with text or a finish reason. Token counts are the server's; ``tokens`` is None where it gave
    no usage. ``text``: all that came, of all choices. ``error``: why it failed, else "".
    """

    intended: float
    sent: float = 0.0
    end: float = 0.0
    events: array[float] = field(default_factory=lambda: array("d"))
    tokens: int | None = None
    prompt: int | None = None
    cached: int | None = None
    finish: str | None = None
    text: str = ""
    error: str = ""

    @property
    def n(self) -> int:
        """Tokens of the answer: as the server counted, else a token for each event."""
        return len(self.events) if self.tokens is None else self.tokens

    @property
    def ttft_s(self) -> float:
        return self.events[0] - self.intended

    @property
    def latency_s(self) -> float:
        return self.end - self.intended

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None for a lone token."""
        return (self.end - self.events[0]) / (self.n - 1) if self.n > 1 else None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class EventReader:
    """Reads the server-sent events of an answer into ``sample``; ``done`` once [DONE] has come."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.done = False
        self.start = b""  # of the body, for the words of an error
        self._rest = b""

    def feed(self, data: bytes, at: float) -> None:
        if len(self.start) < _MOST_ERROR:
            self.start += data[:_MOST_ERROR]
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at)

    def _event(self, data: bytes, at: float) -> None:
        sample = self.sample
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            sample.error = sample.error or f"an event is no chunk: {error}"
            return
        if chunk.error is not None:
            sample.error = _words(chunk.error)
        if chunk.usage is not None:
            sample.prompt = chunk.usage.prompt_tokens
            sample.tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            sample.cached = None if details is None else details.cached_tokens
        for choice in chunk.choices:
            delta = choice.delta
            text = choice.text or ""
            if delta is not None:
                text += (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")
            if text or (delta is not None and delta.tool_calls):
                sample.events.append(at)
                sample.end = at
                sample.text += text
            if choice.finish_reason is not None:
                sample.finish = choice.finish_reason
                sample.end = at


async def ask(pool: Pool, call: Call, intended: float) -> Sample:
    """Send ``call`` now; what goes wrong is in the sample."""
    sample = Sample(intended)
    stream = EventReader(sample)
    data = pool.target.request("POST", call.path, call.body)
    sample.sent = time.perf_counter()
    try:
        status, sample.sent = await pool.send(data, stream)
    except TimeoutError:
        sample.error = f"no whole answer within {pool.timeout_s:g} s"
        return sample
    except OSError as error:
        sample.error = error.strerror or str(error) or type(error).__name__
        return sample
    if status != 200:
        sample.error = f"HTTP {status}: {_body_words(stream.start)}"
    elif not sample.error and not (stream.done and sample.finish is not None):
        sample.error = "the stream ended without a finish reason and [DONE]"
    elif not sample.error and not sample.events:
        sample.events.append(sample.end)  # an answer without text: its only event is its end
    return sample


def _body_words(data: bytes) -> str:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data[:200].decode("utf-8", "replace")
    return _words(body.get("error", body) if isinstance(body, dict) else body)


def _words(error: Any) -> str:
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else msgspec.json.encode(error)[:200].decode("utf-8", "replace")
