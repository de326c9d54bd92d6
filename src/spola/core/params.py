"""SamplingParams: how one request wants its tokens chosen.

Names are vLLM's, so that a vLLM script runs with one import changed. Values are checked when the object
is built; a wrong one raises ``RequestError`` naming the field. Nothing here samples.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams

__all__ = ["MAX_LOGPROBS", "MAX_N", "SamplingParams"]

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_N = 128
MAX_BAD_WORDS = 1024
_INT32 = 2**31
# Beyond it the logits of real models leave f32 after a few factors.
_PENALTY = (1e-3, 1e3)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling settings of one request.

    Order of application: grammar, allowed_token_ids, bad_words, min_tokens, logit_bias, repetition penalty
    (prompt and output), presence and frequency penalty (output only), temperature, top_k, top_p, min_p,
    draw. ``temperature`` 0 is greedy. ``top_k`` 0 or -1 is off. ``logprobs`` asks for that many
    alternatives per generated token; the chosen token is always listed. They are of the raw distribution
    (log-softmax of the unmodified logits), or of the one drawn from with ``logprobs_mode`` "processed".
    ``prompt_logprobs`` asks the same, raw, for every prompt token after the first. ``min_tokens`` are
    generated before an end of sequence or stop token can be; stop strings end a text at any time. A
    ``bad_words`` string is never completed by the output, neither with nor without a space before it.
    ``seed`` is reduced modulo 2**64; None draws one at admission. ``stop`` may be given as one string.
    ``structured_outputs`` is the form that the answer must have; no backend gets to see it.

    Raises RequestError naming the field on a value out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        # vLLM's scripts write one stop as a string, and None for nothing.
        if isinstance(self.stop, str) or self.stop is None:
            msgspec.structs.force_setattr(self, "stop", (self.stop,) if self.stop is not None else ())
        if self.stop_token_ids is None:
            msgspec.structs.force_setattr(self, "stop_token_ids", ())
        if self.bad_words is None:
            msgspec.structs.force_setattr(self, "bad_words", ())
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, -1, 2**63 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, *_PENALTY)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, _INT32 - 1)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**64), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.logprobs_mode not in ("raw", "processed"):
            raise RequestError(
                f"logprobs_mode must be raw or processed, not {self.logprobs_mode!r}", param="logprobs_mode"
            )
        _integer("min_tokens", self.min_tokens, 0, _INT32 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        _check_stops(self.stop)
        if not isinstance(self.stop_token_ids, (tuple, list)):
            raise RequestError("stop_token_ids must be a list of token ids", param="stop_token_ids")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, _INT32 - 1)
        if self.structured_outputs is not None and not isinstance(
            self.structured_outputs, StructuredOutputsParams
        ):
            raise RequestError(
                "structured_outputs must be a StructuredOutputsParams", param="structured_outputs"
            )
        _check_bad_words(self.bad_words)
        _check_allowed(self.allowed_token_ids)
        for token, bias in (self.logit_bias or {}).items():
            _integer("logit_bias", token, 0, _INT32 - 1)
            _number(f"logit_bias[{token}]", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, not {value}", param=name)


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, not {value!r}", param=name)
    try:
        value = float(value)
    except OverflowError:  # an integer of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise RequestError(f"{name} must be finite, not {value}", param=name)
    if not (low < value if open_low else low <= value) or value > high:
        least = "above" if open_low else "at least"
        most = "" if math.isinf(high) else f" and at most {high:g}"
        raise RequestError(f"{name} must be {least} {low:g}{most}, not {value:g}", param=name)


def _check_stops(stops: Any) -> None:
    if not isinstance(stops, (tuple, list)):
        raise RequestError("stop must be a list of strings", param="stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop takes at most {MAX_STOPS} strings, not {len(stops)}", param="stop")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise RequestError(f"stop must hold non-empty strings, not {stop!r}", param="stop")
        if any("\ud800" <= c <= "\udfff" for c in stop):
            raise RequestError(f"stop {stop[:80]!r} is not valid Unicode: it can never occur", param="stop")


def _check_bad_words(words: Any) -> None:
    if not isinstance(words, (tuple, list)) or len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words must be a list of at most {MAX_BAD_WORDS} strings", param="bad_words")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise RequestError(f"bad_words must hold words, not {word!r}", param="bad_words")


def _check_allowed(ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, (tuple, list)) or not ids:
        raise RequestError("allowed_token_ids must be a non-empty list of ids", param="allowed_token_ids")
    for token in ids:
        _integer("allowed_token_ids", token, 0, _INT32 - 1)
