"""Perplexity with its standard error, from log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Perplexity"]


@dataclass(slots=True)
class Perplexity:
    """Adds up negative log-likelihoods: exp of their mean, with the standard error that follows from theirs.

    As llama-perplexity reports them: stderr(ppl) = ppl * sqrt(var(nll) / (n - 1)), first order.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, logprobs: list[float]) -> None:
        for value in logprobs:
            self.total -= value
            self.squares += value * value
        self.count += len(logprobs)

    @property
    def value(self) -> float:
        mean = self.total / self.count
        return math.exp(mean) if mean < 709 else math.inf

    @property
    def stderr(self) -> float | None:
        """None for fewer than two tokens."""
        if self.count < 2:
            return None
        mean = self.total / self.count
        variance = max(0.0, self.squares / self.count - mean * mean)
        return self.value * math.sqrt(variance / (self.count - 1))
