"""Limits per minute of one key, as token buckets: full at the start, refilled evenly.

Requests are paid before they run; tokens after, as nobody knows how many an answer will have: a bucket may go
below zero, and nothing is let in until it is above again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from spola.core.errors import RequestError
from spola.server.keys import Key

__all__ = ["Bucket", "Quota"]


class Bucket:
    """``rate`` per minute, at most a minute's worth at once. ``clock`` in seconds."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._most = max(rate, 1.0)
        self._clock = clock
        self._level = self._most
        self._at = clock()

    def take(self, n: float) -> None:
        """Pay ``n``, also beyond what is there."""
        self._fill()
        self._level -= n

    def wait_s(self, n: float = 1.0) -> float:
        """Seconds until ``n`` are there; 0 if they are."""
        self._fill()
        return max(0.0, (min(n, self._most) - self._level) * 60 / self.rate)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self.rate / 60)
        self._at = now


class Quota:
    """What ``key`` may still do in this minute."""

    def __init__(self, key: Key, clock: Callable[[], float]) -> None:
        self._buckets = {
            name: Bucket(rate, clock)
            for name, rate in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute))
            if rate is not None
        }

    def begin(self) -> None:
        """Take one request. Raises RequestError 429, with the time to wait, when the minute is used up."""
        for name, bucket in self._buckets.items():
            wait = bucket.wait_s()
            if wait > 0:
                raise RequestError(
                    f"this key may use {bucket.rate:g} {name} a minute and has done so; "
                    f"try again in {math.ceil(wait)} s",
                    code="rate_limit_exceeded",
                    status=429,
                    retry_after=math.ceil(wait),
                )
        if "requests" in self._buckets:
            self._buckets["requests"].take(1)

    def spend(self, tokens: int) -> None:
        """Pay for what was computed."""
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(tokens)
