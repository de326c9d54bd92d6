"""Answers in the words of llama-server's /completion, whole or as its events. Times are in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spola.core.params import SamplingParams
from spola.server.errors import ApiError, worded
from spola.server.logprobs import LEAST, Listed
from spola.server.pieces import entry_of
from spola.server.sse import PING, event
from spola.server.translate import End
from spola.text.tokenizer import Tokenizer

__all__ = ["LlamaReply", "settings"]

_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")


def settings(params: SamplingParams) -> dict[str, Any]:
    """What an answer is made with, in llama.cpp's names; what is not there is off."""
    limit = -1 if params.max_tokens is None else params.max_tokens
    return {
        **{name: getattr(params, name) for name in _SETTINGS},
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": -1,
        "seed": -1 if params.seed is None else params.seed,
        "n_predict": limit,
        "max_tokens": limit,
        "stop": list(params.stop),
        "n_probs": params.logprobs or 0,
        "post_sampling_probs": params.logprobs_mode == "processed",
    }


class LlamaReply:
    """``ids``: a whole answer lists its ids. ``drawn``: probabilities, not logarithms."""

    def __init__(
        self,
        *,
        model: str,
        tokenizer: Tokenizer,
        params: SamplingParams,
        stream: bool,
        ids: bool,
        top: int,
        drawn: bool,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._params = params
        self._stream = stream
        self._ids = ids
        self._top = top
        self._drawn = drawn
        self._text = ""
        self._tokens: list[int] = []
        self._probs: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        text, ids = delta["content"], list(delta["ids"])
        probs = [self._prob(token) for token in delta["listed"]]
        self._text += text
        self._tokens += ids
        self._probs += probs
        if not (text or ids):
            return b""
        more = {"completion_probabilities": probs} if probs else {}
        told = {"index": 0, "content": text, "tokens": ids, "stop": False, "id_slot": -1}
        return event({**told, "tokens_predicted": len(self._tokens), **more})

    def end(self, end: End) -> bytes:
        usage, job = end.usage, end.jobs[0]
        word = end.stop if isinstance(end.stop, str) else ""
        kind = "limit" if end.finish == "length" else "word" if word else "eos"
        prompt = self._tokenizer.decode(job.prompt_ids, skip_special=False)
        self._last = {
            "index": 0,
            "content": "" if self._stream else self._text,
            "tokens": self._tokens if self._ids and not self._stream else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage["completion_tokens"],
            "tokens_evaluated": usage["prompt_tokens"],
            "generation_settings": settings(self._params),
            "prompt": prompt,
            "has_new_line": "\n" in self._text,
            "truncated": False,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": usage["prompt_tokens_details"]["cached_tokens"],
            "timings": _timings(usage),
        }
        if self._probs and not self._stream:
            self._last["completion_probabilities"] = self._probs
        return event(self._last)

    def ping(self) -> bytes:
        return PING

    def failed(self, error: ApiError) -> bytes:
        return event(worded(error, "/completion"))

    def whole(self) -> Any:
        return self._last

    def _prob(self, token: Listed) -> dict[str, Any]:
        logprob, top = entry_of(token)
        name = "top_probs" if self._drawn else "top_logprobs"
        return {**self._entry(token.id, logprob), name: [self._entry(*one) for one in top[: self._top]]}

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(id) if id < self._tokenizer.vocab_size else b""
        value = {"prob": math.exp(logprob)} if self._drawn else {"logprob": max(logprob, LEAST)}
        return {"id": id, "token": data.decode("utf-8", "replace"), "bytes": list(data), **value}


def _timings(usage: Mapping[str, Any]) -> dict[str, Any]:
    timing, cached = usage.get("timing", {}), usage["prompt_tokens_details"]["cached_tokens"]
    out: dict[str, Any] = {"cache_n": cached}
    rows = (
        ("prompt", usage["prompt_tokens"] - cached, timing.get("prefill_s", 0.0)),
        ("predicted", usage["completion_tokens"], timing.get("decode_s", 0.0)),
    )
    for name, n, seconds in rows:
        out[f"{name}_n"] = n
        out[f"{name}_ms"] = round(seconds * 1e3, 3)
        out[f"{name}_per_token_ms"] = round(seconds * 1e3 / n, 3) if n else 0.0
        out[f"{name}_per_second"] = round(n / seconds, 3) if seconds else 0.0
    return out
