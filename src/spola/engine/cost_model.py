"""CostModel: how long a step will take, learnt from the steps that ran; StepBudget: how long one may be.

seconds = fixed + row_s * rows + head_s * heads + pair_s * pairs, where a pair is a row and a position that it
sees. The prices start from the machine's figures and are refined by least squares over the steps that ran,
old ones fading, outliers clipped. Reads no clock and knows no requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spola.core.errors import ConfigError
from spola.core.step import Step

__all__ = ["CostModel", "Prices", "StepBudget", "Work", "work_of"]

FLOOR_ROWS = 16  # prompt rows that every step may have: fewer waste the pass over the weights
TILE_ROWS = 16  # larger chunks are whole tiles of the kernels

_FADE = 0.99  # weight of a step against the one after it: about a hundred steps count
_CLIP = 4.0  # a step that is further off than this factor counts as this far off
_RIDGE = 0.02  # weight of the proportions of the first prices, in steps: decides what the steps do not tell
_SCALE_FADE = 0.9  # as _FADE, for the common scale of all prices
_SURPRISES = 3  # steps in a row off by more than _CLIP: another machine, or wrong first prices
_LEAST = 0.05  # no price falls below this part of its proportion: none is ever free


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of a step, of a row, of a row's logits and of a pair of a row and a position it sees."""

    fixed_s: float
    row_s: float
    head_s: float
    pair_s: float

    def __post_init__(self) -> None:
        values = (self.fixed_s, self.row_s, self.head_s, self.pair_s)
        if not all(math.isfinite(value) and value >= 0 for value in values) or not self.row_s:
            raise ConfigError(f"prices of a step must be finite and not negative, a row's above 0: {self}")


@dataclass(slots=True)
class Work:
    """What a step computes. A row at position p sees p + 1 positions."""

    rows: int = 0
    heads: int = 0
    pairs: int = 0

    def add(self, start: int, rows: int, heads: int) -> None:
        """A slice of ``rows`` rows from position ``start``, ``heads`` of them with logits."""
        self.rows += rows
        self.heads += heads
        self.pairs += rows * start + rows * (rows + 1) // 2


def work_of(step: Step) -> Work:
    """The work of a planned step."""
    work = Work()
    for piece in step.slices:
        work.add(piece.start, piece.n, piece.n_head)
    return work


class CostModel:
    """Prices that follow the steps that ran.

    A step is described by the shares of its first estimate that each price makes up, which have no unit, and
    by its time over that estimate. Common scale: fading geometric mean of those ratios. Around it, ridge
    regression (weights relative to each step's time) keeps the proportions of the first prices where the
    steps seen do not tell them apart.
    """

    def __init__(self, first: Prices) -> None:
        self._first = (first.fixed_s, first.row_s, first.head_s, first.pair_s)
        self._prices = list(self._first)
        self._gram = [[0.0] * 4 for _ in range(4)]
        self._moment = [0.0] * 4
        self._log_sum = 0.0
        self._log_weight = 0.5  # the first prices count half a step
        self._surprises = 0
        self.steps = 0

    @property
    def prices(self) -> Prices:
        return Prices(*self._prices)

    def seconds(self, work: Work) -> float:
        """Time that a step of ``work`` will take."""
        fixed, row, head, pair = self._prices
        return fixed + row * work.rows + head * work.heads + pair * work.pairs

    def observe(self, work: Work, elapsed_s: float) -> None:
        """Learn from a step that ran. A time that is no time (0, not finite) is left out."""
        if not math.isfinite(elapsed_s) or elapsed_s <= 0 or work.rows < 1:
            return
        counts = (1.0, float(work.rows), float(work.heads), float(work.pairs))
        estimate = sum(count * price for count, price in zip(counts, self._first, strict=True))
        self.steps += 1
        ratio = self._believable(elapsed_s / estimate, self.seconds(work) / estimate)
        shares = [count * price / estimate for count, price in zip(counts, self._first, strict=True)]
        self._log_sum = _SCALE_FADE * self._log_sum + math.log(ratio)
        self._log_weight = _SCALE_FADE * self._log_weight + 1.0
        scale = math.exp(self._log_sum / self._log_weight)
        weight = min((scale / ratio) ** 2, _CLIP**2)  # errors count relative to the step's own time
        for i, share in enumerate(shares):
            self._moment[i] = _FADE * self._moment[i] + weight * share * ratio
            row = self._gram[i]
            for j, other in enumerate(shares):
                row[j] = _FADE * row[j] + weight * share * other
        factors = _fit(self._gram, [value / scale for value in self._moment])
        self._prices = [price * scale * factor for price, factor in zip(self._first, factors, strict=True)]

    def _believable(self, ratio: float, believed: float) -> float:
        """``ratio``, clipped to be near ``believed``; off again and again, it starts the model anew."""
        clipped = min(max(ratio, believed / _CLIP), believed * _CLIP)
        self._surprises = 0 if clipped == ratio else self._surprises + 1
        if self._surprises < _SURPRISES:
            return clipped
        self._surprises = 0
        self._gram = [[0.0] * 4 for _ in range(4)]
        self._moment = [0.0] * 4
        self._log_sum = self._log_weight = 0.0
        return ratio

    def rows_within(self, seconds: float, start: int) -> int:
        """Rows from position ``start`` that add at most ``seconds`` to a step.

        n rows cost n row_s + (n start + n^2 / 2 + n / 2) pair_s.
        """
        row, pair = self._prices[1], self._prices[3]
        if seconds <= 0:
            return 0
        slope = row + pair * (start + 0.5)
        return int(2 * seconds / (slope + math.sqrt(slope * slope + 2 * pair * seconds)))


class StepBudget:
    """How many prompt rows may join a step in which others wait for their next token.

    ``itl_target_s``: what the time between two tokens of a running request should stay under. ``floor`` rows
    are always allowed, so that prompts move on also where the decodes alone take longer.
    """

    def __init__(self, model: CostModel, itl_target_s: float, *, floor: int = FLOOR_ROWS) -> None:
        if not itl_target_s > 0:
            raise ConfigError(f"itl_target must be above 0, not {itl_target_s}")
        self.model = model
        self.itl_target_s = itl_target_s
        self.floor = floor

    def rows(self, planned: Work, prompt_rows: int, start: int) -> int:
        """Rows for a prompt at ``start`` beside ``planned``, of which ``prompt_rows`` are others'."""
        left = max(0, self.floor - prompt_rows)
        rows = self.model.rows_within(self.itl_target_s - self.model.seconds(planned), start)
        if rows > TILE_ROWS:
            rows -= rows % TILE_ROWS
        return max(rows, left)


def _fit(gram: list[list[float]], moment: list[float]) -> list[float]:
    """Factors m >= _LEAST that minimise m'Gm - 2 m'b + ridge |m - 1|^2: active set, worst first."""
    every = range(len(moment))
    active = list(every)
    factors = [_LEAST] * len(moment)
    while active:
        matrix = [[gram[i][j] + (_RIDGE if i == j else 0.0) for j in active] for i in active]
        held = [j for j in every if j not in active]
        right = [moment[i] + _RIDGE - sum(gram[i][j] * _LEAST for j in held) for i in active]
        found = _solve(matrix, right)
        worst = min(range(len(active)), key=found.__getitem__)
        if found[worst] >= _LEAST:
            for i, value in zip(active, found, strict=True):
                factors[i] = value
            break
        del active[worst]
    return factors


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a small symmetric positive definite system, by elimination."""
    n = len(right)
    for k in range(n):
        for i in range(k + 1, n):
            factor = matrix[i][k] / matrix[k][k]
            for j in range(k, n):
                matrix[i][j] -= factor * matrix[k][j]
            right[i] -= factor * right[k]
    for k in range(n - 1, -1, -1):
        right[k] = (right[k] - sum(matrix[k][j] * right[j] for j in range(k + 1, n))) / matrix[k][k]
    return right
