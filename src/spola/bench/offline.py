"""Speed of one loaded model without a server: prefill, and decode at several batch sizes.

Requests of random token ids go through the engine, so what Python costs between two steps counts. Speeds are
printed beside the roofline: the time that this machine's memory and arithmetic would need at least.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spola.core.errors import CapacityError
from spola.core.params import SamplingParams
from spola.engine.engine import Engine
from spola.engine.request import Request, Status
from spola.runtime.limits import MachineLimits
from spola.runtime.loaded import Loaded
from spola.runtime.roofline import Roofline
from spola.spec.cost import streamed_weight_bytes

__all__ = ["Offline", "Plan"]

Watched = Callable[[], AbstractContextManager[None]]

_FIRST_ID = 1 << 40  # of requests here: above any that a service gives


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. ``depth`` tokens are in the cache before a decode; 0 starts from an empty context."""

    prompt: int = 512
    tokens: int = 128
    batches: Sequence[int] = (1, 8, 16)
    depth: int = 0
    repeat: int = 5
    kv_cache: bool = True

    @property
    def longest(self) -> int:
        """Tokens of the longest request: while the last prompts are computed, the first requests go on."""
        ahead = max(self.batches) * self.depth // 128 + 2
        return max(self.prompt, max(self.depth, 1) + self.tokens + ahead) + 1


class Offline:
    """Measures ``loaded``, whose requests are its alone. Same ``seed``, same token ids."""

    def __init__(self, loaded: Loaded, limits: MachineLimits, seed: int = 0) -> None:
        self.loaded = loaded
        self.limits = limits
        config = loaded.config
        self._roofline = Roofline(loaded.spec, loaded.dtypes, config.kv_groups, limits, config.precise)
        self._random = random.Random(seed)
        self._next = _FIRST_ID

    def run(self, plan: Plan) -> dict[str, Any]:
        """All measurements of ``plan``, as the JSON document of ``spola bench offline``."""
        config, engine = self.loaded.config, self.loaded.engine
        # Warms up caches, clocks and the worker threads; a whole step, as its memory is first touched here.
        self.prefill(min(plan.prompt, config.max_step_tokens))
        prefill = [self.prefill(plan.prompt) for _ in range(plan.repeat)]
        weights = streamed_weight_bytes(self.loaded.spec, self.loaded.dtypes)
        return {
            "model": config.model,
            "threads": config.threads,
            "isa": getattr(engine.runner, "isa", self.limits.isa),
            "machine": self.limits.as_json(),
            "prefill": {
                "tokens": plan.prompt,
                **_summary([plan.prompt / s for s in prefill]),
                "roofline": self._least(plan.prompt) / statistics.median(prefill),
            },
            "decode": [self._decode_row(plan, batch) for batch in plan.batches],
            "weights_bytes": weights,
            "weights_gb_s": self.limits.read_of(weights) / 1e9,
            "kv_bytes_per_token": config.kv_bytes_per_token,
        }

    def _decode_row(self, plan: Plan, batch: int) -> dict[str, Any]:
        one = self.decode if plan.kv_cache else self._decode_uncached
        runs = [one(batch, plan.depth, plan.tokens) for _ in range(plan.repeat)]
        seconds = [math.fsum(steps) for steps in runs]
        row = {
            "batch": batch,
            "depth": plan.depth,
            **_summary([batch * plan.tokens / s for s in seconds]),
        }
        first = max(plan.depth, 1) + 1
        if plan.kv_cache:
            least = sum(self._roofline.decode([first + i] * batch) for i in range(plan.tokens))
        else:
            least = sum(batch * self._least(first + i) for i in range(plan.tokens))
        each = [1000 * statistics.median(steps) for steps in zip(*runs, strict=True)]
        return row | {"roofline": least / statistics.median(seconds), "step_ms": each}

    def prefill(self, tokens: int, watched: Watched = nullcontext) -> float:
        """Seconds from a prompt of ``tokens`` tokens to its first token, in the context ``watched``."""
        self._add(tokens, 1)
        with watched():
            start = time.perf_counter()
            self._drain()
            return time.perf_counter() - start

    def decode(self, batch: int, depth: int, tokens: int, watched: Watched = nullcontext) -> list[float]:
        """Seconds of each of ``tokens`` steps of ``batch`` requests that have ``depth`` tokens cached."""
        prompt = max(depth, 1)
        room = self.loaded.config.max_model_len - prompt
        requests = [self._add(prompt, room) for _ in range(batch)]
        engine = self.loaded.engine
        while any(request.n_output == 0 for request in requests):
            engine.step(time.monotonic())
        with watched():
            times = [time.perf_counter()]
            for _ in range(tokens):
                engine.step(time.monotonic())
                times.append(time.perf_counter())
        if any(request.status is not Status.RUNNING for request in requests):
            raise CapacityError(
                f"{batch} requests of {prompt + tokens} tokens do not fit: give more --kv-memory"
            )
        for request in requests:
            engine.abort(request.id)
        self._drain()
        return [after - before for before, after in pairwise(times)]

    def _decode_uncached(self, batch: int, depth: int, tokens: int) -> list[float]:
        """The same without a cache: each token computes the whole text so far anew."""
        seconds = []
        for i in range(tokens):
            for _ in range(batch):
                self._add(max(depth, 1) + 1 + i, 1)
            start = time.perf_counter()
            self._drain()
            seconds.append(time.perf_counter() - start)
        return seconds

    def _least(self, rows: int) -> float:
        """Least seconds of a prompt of ``rows`` tokens and its first logits."""
        return self._roofline.prefill(rows, self.loaded.config.max_step_tokens)

    def _add(self, prompt: int, tokens: int) -> Request:
        vocab = self.loaded.spec.vocab
        self._next += 1
        request = Request(
            id=self._next,
            ids=[self._random.randrange(vocab) for _ in range(prompt)],
            params=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        )
        self.loaded.engine.add(request)
        return request

    def _drain(self) -> None:
        engine: Engine = self.loaded.engine
        while engine.has_work:
            engine.step(time.monotonic())


def _summary(rates: list[float]) -> dict[str, float]:
    return {"tok_s": statistics.median(rates), "tok_s_min": min(rates), "tok_s_max": max(rates)}
