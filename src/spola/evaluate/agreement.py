"""Agreement of two models on the same positions: mean Kullback-Leibler divergence and top-1 agreement.

Works on logits, in double precision, a block of rows at a time. Needs NumPy (the extra ``eval``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spola.core.errors import MissingExtraError, ModelError

__all__ = ["Agreement", "require_numpy", "standard_error"]

ROWS = 64  # at a time: 64 rows of 150,000 ids are 77 MB in double precision


def require_numpy() -> Any:
    """The numpy module, or MissingExtraError saying how to get it."""
    try:
        import numpy
    except ImportError:
        raise MissingExtraError("comparing models needs NumPy: pip install 'spola[eval]'") from None
    return numpy


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent ``values``; None for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


class Agreement:
    """Adds up, over positions, KL(base || model) in nats and whether both have the same likeliest id.

    ``vocab`` ids per row.
    """

    def __init__(self, vocab: int) -> None:
        self._np = require_numpy()
        self._vocab = vocab
        self._same = 0
        self.divergences: list[float] = []  # of each position, in order

    def add(self, model: Iterable[bytes], base: Iterable[bytes], targets: list[int]) -> list[float]:
        """Take in the logits (f32 pieces) of both for one window; gives the model's logprob of ``targets``.

        Raises ModelError unless both have one row for each target.
        """
        np = self._np
        logprobs: list[float] = []
        ours, theirs = self._blocks(model), self._blocks(base)
        for q, p in zip(ours, theirs, strict=True):
            if len(q) != len(p):
                raise ModelError(f"the models gave {len(q)} and {len(p)} rows for the same positions")
            logq, logp = self._log_softmax(q), self._log_softmax(p)
            self.divergences += (np.exp(logp) * (logp - logq)).sum(axis=1).tolist()
            self._same += int((q.argmax(axis=1) == p.argmax(axis=1)).sum())
            ids = targets[len(logprobs) : len(logprobs) + len(q)]
            logprobs += logq[np.arange(len(q)), ids].tolist()
        if len(logprobs) != len(targets):
            raise ModelError(f"the models gave {len(logprobs)} rows for {len(targets)} positions")
        return logprobs

    @property
    def count(self) -> int:
        return len(self.divergences)

    @property
    def mean_kl(self) -> float:
        return math.fsum(self.divergences) / self.count

    @property
    def kl_stderr(self) -> float | None:
        """Standard error of ``mean_kl``, as if positions were independent; None for one position."""
        return standard_error(self.divergences)

    @property
    def top1(self) -> float:
        return self._same / self.count

    def _blocks(self, pieces: Iterable[bytes]) -> Iterator[Any]:
        """Blocks of ROWS rows (the last may be shorter), however the pieces were cut."""
        np = self._np
        held = np.empty((0, self._vocab), dtype=np.float32)
        for piece in pieces:
            rows = np.frombuffer(piece, dtype="<f4").reshape(-1, self._vocab)
            held = np.concatenate([held, rows])
            while len(held) >= ROWS:
                yield held[:ROWS]
                held = held[ROWS:]
        if len(held):
            yield held

    def _log_softmax(self, logits: Any) -> Any:
        np = self._np
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
