"""CostModel: how long a step will take, learnt from the steps that ran; StepBudget: how long one may be.

seconds = fixed + row_s * first rows + more_s * further rows + head_s * heads + pair_s * pairs. The first
``FIRST_ROWS`` rows have a price of their own, as they may hide behind the reading of the weights; a pair is a
row and a position that it sees. The prices start from the machine's figures and are refined by least squares
over the steps that ran, old ones fading, outliers clipped. Reads no clock and knows no requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from spola.core.errors import ConfigError
from spola.core.step import Step

__all__ = ["CostModel", "Prices", "StepBudget", "Work", "work_of"]

FLOOR_ROWS = 16  # prompt rows that every step may have: fewer waste the pass over the weights
SHORT = 0.25  # of the length of a step, where somebody may come who should not wait for its end
SHORT_ROWS = 48  # prompt rows that such a step may have: the pass over the weights is a quarter of it then
TILE_ROWS = 16  # larger chunks are whole tiles of the kernels

FIRST_ROWS = 8

N_PRICES = 5

_FADE = 0.98  # weight of a step against the next one of its size: about fifty of each size count
_CLIP = 4.0  # a step that is further off than this factor counts as this far off
_RIDGE = 0.002  # weight of the proportions of the first prices, in steps: decides what the steps do not tell
_SCALE_FADE = 0.9  # as _FADE, for the common scale of all prices
_SURPRISES = 3  # steps in a row off by more than _CLIP: another machine, or wrong first prices
_DRIFT = 1.5  # steps off by more than this from earlier ones of their size, all to the same side, are a
# machine that has changed speed; a model that does not fit some size is not
_FEW_STEPS = 3.0
_DRIFTS = 8  # so many in a row
_REFIT = 8  # steps between two fits, once there are some
_LEAST = 0.05  # no price falls below this part of its proportion: none is ever free

_PUT_OFF = 8  # steps that may wait to be learnt from: in a row they cost less than each at its time

_SPREADS = 2.0  # deviations of their errors by which steps are planned below the target
_FIRST_SPREAD = 0.05  # before any step: counts as one
_NEAR = (0.5, 1.25)  # steps whose errors count, by estimate over target: smaller ones err differently
_MOST_OFF = 0.4  # an error, or a margin, beyond this logarithm counts as this: a stall is no spread


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of a step, of one of its first rows, of a row's logits, of a pair of a row and a position it
    sees, and of a further row (None: as one of the first).
    """

    fixed_s: float
    row_s: float
    head_s: float
    pair_s: float
    more_s: float | None = None

    def __post_init__(self) -> None:
        values = (self.fixed_s, self.row_s, self.head_s, self.pair_s, self.more)
        if not all(math.isfinite(value) and value >= 0 for value in values) or not self.row_s:
            raise ConfigError(f"prices of a step must be finite and not negative, a row's above 0: {self}")

    @property
    def more(self) -> float:
        return self.row_s if self.more_s is None else self.more_s


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
    rows = pairs = heads = 0  # Work.add, written out: once for each slice of each step
    for piece in step.slices:
        n = len(piece.ids) // 4
        rows += n
        heads += piece.n_head
        pairs += n * piece.start + n * (n + 1) // 2
    work.rows, work.heads, work.pairs = rows, heads, pairs
    return work


@dataclass(slots=True)
class _Seen:
    """Sums over the steps of one size: of shares times shares, and of shares, over the steps' times."""

    gram: list[float] = field(default_factory=lambda: [0.0] * (N_PRICES * N_PRICES))
    moment: list[float] = field(default_factory=lambda: [0.0] * N_PRICES)
    log_sum: float = 0.0  # of the logarithms of time over first estimate, and how many steps that is
    steps: float = 0.0

    def off(self, ratio: float) -> float:
        """``ratio`` over that of the steps of this size so far; 1 while they are few."""
        return ratio / math.exp(self.log_sum / self.steps) if self.steps > _FEW_STEPS else 1.0

    def note(self, ratio: float) -> None:
        self.log_sum = _FADE * self.log_sum + math.log(ratio)
        self.steps = _FADE * self.steps + 1.0

    def rescale(self, factor: float) -> None:
        """As if every step had taken ``factor`` times as long."""
        self.log_sum += self.steps * math.log(factor)
        self.gram = [value / factor / factor for value in self.gram]
        self.moment = [value / factor for value in self.moment]

    def add(self, parts: list[float]) -> None:
        """One step more; ``parts`` are its shares, over its time."""
        products = [part * other for part in parts for other in parts]
        self.moment = [_FADE * sum + part for sum, part in zip(self.moment, parts, strict=True)]
        self.gram = [_FADE * sum + product for sum, product in zip(self.gram, products, strict=True)]


class CostModel:
    """Prices that follow the steps that ran.

    A step is described by the shares of its first estimate that each price makes up, which have no unit, and
    by its time over that estimate. Common scale: fading geometric mean of those ratios. Around it, ridge
    regression, with errors relative to each step's time, keeps the proportions of the first prices where the
    steps seen do not tell them apart. Steps fade within their size (powers of two of rows): a thousand steps
    of one row do not make forgotten what sixteen cost.
    """

    def __init__(self, first: Prices) -> None:
        self._first = (first.fixed_s, first.row_s, first.head_s, first.pair_s, first.more)
        self._prices = self._first
        self._seen: dict[int, _Seen] = {}
        self._log_sum = 0.0
        self._log_weight = 0.5  # the first prices count half a step
        self._surprises = 0
        self._drift: list[float] = []  # logarithms of how far off the last steps were
        self.steps = 0

    @property
    def prices(self) -> Prices:
        return Prices(*self._prices)

    def seconds(self, work: Work) -> float:
        """Time that a step of ``work`` will take."""
        fixed, row, head, pair, more = self._prices
        rows = min(work.rows, FIRST_ROWS)
        return fixed + row * rows + more * (work.rows - rows) + head * work.heads + pair * work.pairs

    def observe(self, work: Work, elapsed_s: float) -> None:
        """Learn from a step that ran. A time that is no time (0, not finite) is left out."""
        if not math.isfinite(elapsed_s) or elapsed_s <= 0 or work.rows < 1:
            return
        fixed, row, head, pair, more = self._first
        rows = min(work.rows, FIRST_ROWS)
        costs = (fixed, row * rows, head * work.heads, pair * work.pairs, more * (work.rows - rows))
        estimate = sum(costs)
        seen = self._seen.setdefault(work.rows.bit_length(), _Seen())
        self._follow(seen.off(elapsed_s / estimate))
        ratio = self._believable(elapsed_s / estimate, self.seconds(work) / estimate)
        self.steps += 1
        self._log_sum = _SCALE_FADE * self._log_sum + math.log(ratio)
        self._log_weight = _SCALE_FADE * self._log_weight + 1.0
        seen = self._seen.setdefault(work.rows.bit_length(), _Seen())
        seen.note(ratio)
        seen.add([cost / estimate / ratio for cost in costs])
        if self.steps < 4 * _REFIT or self.steps % _REFIT == 0:
            self._fit()

    def rows_within(self, seconds: float, start: int, planned: int = 0) -> int:
        """Rows from position ``start`` that add at most ``seconds`` to a step of ``planned`` rows.

        n rows cost (n start + n^2 / 2 + n / 2) pair_s, and row_s or more_s each.
        """
        _, row, _, pair, more = self._prices
        first = max(0, FIRST_ROWS - planned)
        left = seconds - first * (row - more)
        if seconds <= 0 or left <= 0:
            return max(0, int(seconds / row))
        slope = more + pair * (start + 0.5)
        return int(2 * left / (slope + math.sqrt(slope * slope + 2 * pair * left)))

    def _fit(self) -> None:
        scale = math.exp(self._log_sum / self._log_weight)
        gram = [scale * scale * sum(values) for values in zip(*(s.gram for s in self._seen.values()))]
        moment = [scale * sum(values) for values in zip(*(s.moment for s in self._seen.values()))]
        factors = _fit(gram, moment)
        fixed, row, head, pair, more = (p * scale * f for p, f in zip(self._first, factors, strict=True))
        self._prices = (fixed, row, head, pair, more)

    def _follow(self, off: float) -> None:
        """When step after step is off to the same side, all that was seen has become that much slower."""
        near = 1 / _DRIFT < off < _DRIFT
        if near or (self._drift and (self._drift[0] > 0) != (off > 1)):
            self._drift.clear()
        if near:
            return
        self._drift.append(math.log(off))
        if len(self._drift) == _DRIFTS:
            mean = sum(self._drift) / _DRIFTS
            for seen in self._seen.values():
                seen.rescale(math.exp(mean))
            self._log_sum += mean * self._log_weight
            self._drift.clear()
            self._fit()

    def _believable(self, ratio: float, believed: float) -> float:
        """``ratio``, clipped to be near ``believed``; off again and again, it starts the model anew."""
        clipped = min(max(ratio, believed / _CLIP), believed * _CLIP)
        self._surprises = 0 if clipped == ratio else self._surprises + 1
        if self._surprises < _SURPRISES:
            return clipped
        self._surprises = 0
        self._seen.clear()
        self._log_sum = self._log_weight = 0.0
        return ratio


class StepBudget:
    """How many prompt rows may join a step in which others wait for their next token.

    ``itl_target_s``: what the time between two tokens of a running request should stay under. An estimate is
    a mean, which half of the steps exceed: steps are planned for ``aim_s``, lower by two deviations of what
    recent steps near the target took from what was estimated. ``floor`` rows are always allowed, so that
    prompts move on also where the decodes alone take longer.
    """

    def __init__(self, model: CostModel, itl_target_s: float, *, floor: int = FLOOR_ROWS) -> None:
        if not itl_target_s > 0:
            raise ConfigError(f"itl_target must be above 0, not {itl_target_s}")
        self._model = model
        self._unseen: list[tuple[Step, float]] = []
        self.itl_target_s = itl_target_s
        self.floor = floor
        self._aim_s = itl_target_s * math.exp(-_SPREADS * _FIRST_SPREAD)
        self._weight = 1.0  # of the errors seen, their sum and that of their squares, old ones fading
        self._sum = 0.0
        self._squares = _FIRST_SPREAD**2

    @property
    def model(self) -> CostModel:
        """The prices, with all that was seen."""
        if self._unseen:
            self._learn()
        return self._model

    @property
    def aim_s(self) -> float:
        """How long a step is planned to be at most."""
        if self._unseen:
            self._learn()
        return self._aim_s

    def rows(self, planned: Work, prompt_rows: int, start: int, *, short: bool = False) -> int:
        """Rows for a prompt at ``start`` beside ``planned``, of which ``prompt_rows`` are others'.

        In a ``short`` step: of ``SHORT`` of the length, or with ``SHORT_ROWS`` of prompts.
        """
        part, floor = (SHORT, max(SHORT_ROWS, self.floor)) if short else (1.0, self.floor)
        left = max(0, floor - prompt_rows)
        model = self.model
        rows = model.rows_within(part * self._aim_s - model.seconds(planned), start, planned.rows)
        if rows > TILE_ROWS:
            rows -= rows % TILE_ROWS
        return max(rows, left)

    def saw(self, step: Step, elapsed_s: float) -> None:
        """A step ran. Learnt from before the next answer, or when some have gathered."""
        self._unseen.append((step, elapsed_s))
        if len(self._unseen) >= _PUT_OFF:
            self._learn()

    def _learn(self) -> None:
        unseen, self._unseen = self._unseen, []
        for step, elapsed_s in unseen:
            self.observe(work_of(step), elapsed_s)

    def observe(self, work: Work, elapsed_s: float) -> None:
        """Learn from a step that ran: its prices, and how far off their estimate was."""
        estimate = self._model.seconds(work)
        near = _NEAR[0] * self.itl_target_s < estimate < _NEAR[1] * self.itl_target_s
        if near and math.isfinite(elapsed_s) and elapsed_s > 0:
            off = min(max(math.log(elapsed_s / estimate), -_MOST_OFF), _MOST_OFF)
            self._weight = _FADE * self._weight + 1.0
            self._sum = _FADE * self._sum + off
            self._squares = _FADE * self._squares + off * off
            mean = self._sum / self._weight
            spread = math.sqrt(max(0.0, self._squares / self._weight - mean * mean))
            margin = min(max(0.0, mean + _SPREADS * spread), _MOST_OFF)
            self._aim_s = self.itl_target_s * math.exp(-margin)
        self._model.observe(work, elapsed_s)


def _fit(gram: list[float], moment: list[float]) -> list[float]:
    """Factors m >= _LEAST that minimise m'Gm - 2 m'b + ridge |m - 1|^2: active set, worst first."""
    every = range(len(moment))
    active = list(every)
    factors = [_LEAST] * len(moment)
    while active:
        rows = [gram[i * len(moment) : (i + 1) * len(moment)] for i in every]
        matrix = [[rows[i][j] + (_RIDGE if i == j else 0.0) for j in active] for i in active]
        held = [j for j in every if j not in active]
        right = [moment[i] + _RIDGE - sum(rows[i][j] * _LEAST for j in held) for i in active]
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
