"""Speculator: how many drafts each request gets in a step, so that they pay for themselves.

A step that verifies g drafts beside the row of the last known token gives 1 to g + 1 tokens. With the
chance a that a draft is accepted it gives (1 - a^(g + 1)) / (1 - a) on average (Leviathan et al., arXiv
2211.17192), and it takes the time of a step with g more rows. The length chosen is the one with the most
tokens per second over the whole step, zero included: docs/speculation.md. What is guessed is a Proposer's
business.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from spola.engine.propose import Proposer
from spola.engine.request import Request

__all__ = ["Acceptance", "Speculator", "StepCost", "StepTimes", "best_length", "expected_tokens"]

StepCost = Callable[[int], float]  # seconds of a step of that many rows

MOST_DRAFTS = 16
MOST_TOGETHER = 64  # drafts of a model for all requests of a step: beyond, no row is free anywhere
_FADE = 0.9  # of what is known about acceptance, per draft run verified
_DOUBT = 0.99  # the same, per guess that was not tried: a bad past is forgiven slowly


def expected_tokens(alpha: float, drafts: int) -> float:
    """Tokens from one verification of ``drafts`` drafts, each accepted with probability ``alpha``."""
    if alpha >= 1.0:
        return drafts + 1.0
    return float((1.0 - alpha ** (drafts + 1)) / (1.0 - alpha))


def best_length(alpha: float, most: int, cost: StepCost, *, rows: int, tokens: float) -> int:
    """The number of drafts, 0 to ``most``, with the most tokens per second.

    ``rows`` are the rows of the step besides the drafts, ``tokens`` what it gives to other requests.
    """
    best, highest = 0, (tokens + 1.0) / cost(rows)
    for drafts in range(1, most + 1):
        rate = (tokens + expected_tokens(alpha, drafts)) / cost(rows + drafts)
        if rate > highest:
            best, highest = drafts, rate
    return best


def best_lengths(
    alphas: Sequence[float],
    most: Sequence[int],
    cost: StepCost,
    draft_cost: StepCost,
    *,
    rows: int,
    room: int,
) -> list[int]:
    """Numbers of drafts of several requests, at most ``most[i]``, that together give most tokens per second.

    A draft model guesses one token for each of them at a time, in steps of ``draft_cost``. The i-th draft of
    a request gives alpha^i tokens more on average. For every depth, drafts are added by falling gain, at most
    ``room``. ``rows`` are the rows of the step beside them; every request gets one token anyway.
    """
    best, highest = [0] * len(alphas), len(alphas) / cost(rows)
    deepest = min(max(most, default=0), max(1, MOST_TOGETHER // max(len(alphas), 1)))
    gains = [
        (-(alpha**i), i, j) for j, alpha in enumerate(alphas) for i in range(1, min(most[j], deepest) + 1)
    ]
    gains.sort()
    seconds = [cost(rows + n) for n in range(min(room, len(gains)) + 1)]
    drafts = [0.0, *(draft_cost(n) for n in range(1, len(alphas) + 1))]
    for bound in range(1, deepest + 1):
        tokens, drafting = float(len(alphas)), 0.0
        lengths, at_depth = [0] * len(alphas), [0] * (bound + 1)
        added = 0
        for gain, depth, j in gains:
            if depth > bound or added == room:
                continue
            before = at_depth[depth]
            at_depth[depth] += 1
            drafting += drafts[before + 1] - drafts[before]
            tokens -= gain
            lengths[j] = depth
            added += 1
            rate = tokens / (seconds[added] + drafting)
            if rate > highest:
                highest, best = rate, lengths[:]
    return best


class Acceptance:
    """How often drafts were accepted lately: a fading count, which starts as good as ``prior``."""

    __slots__ = ("_hits", "_trials")

    _WEIGHT = 2.0  # trials that the prior counts for

    def __init__(self) -> None:
        self._hits = 0.0
        self._trials = 0.0

    def rate(self, prior: float) -> float:
        return (self._hits + self._WEIGHT * prior) / (self._trials + self._WEIGHT)

    def add(self, drafted: int, accepted: int) -> None:
        """One verification. Drafts behind the first refused one were not tried."""
        self._hits = self._hits * _FADE + accepted
        self._trials = self._trials * _FADE + min(accepted + 1, drafted)

    def doubt(self) -> None:
        """A guess was not tried: no evidence."""
        self._hits *= _DOUBT
        self._trials *= _DOUBT


class StepTimes:
    """A StepCost that learns from the decode steps that ran; ``guess`` gives its shape where none has.

    Without a guess: streaming the weights, once for all rows, takes as long as computing four of them. That
    is on the bright side, so that lengths which might pay are tried and then known.
    """

    _NEW = 0.2  # share of the newest step in a mean

    def __init__(self, guess: StepCost | None = None) -> None:
        self._guess: StepCost = guess or (lambda rows: 4.0 + rows)
        self._known: dict[int, float] = {}
        self._sizes: list[int] = []  # its keys in order

    def add(self, rows: int, seconds: float) -> None:
        if seconds <= 0.0:
            return
        before = self._known.get(rows)
        if before is None:
            insort(self._sizes, rows)
        self._known[rows] = seconds if before is None else before + self._NEW * (seconds - before)

    def __call__(self, rows: int) -> float:
        known = self._known.get(rows)
        if known is not None:
            return known
        if not self._known:
            return self._guess(rows)
        at = bisect_left(self._sizes, rows)
        near = min(self._sizes[max(at - 1, 0) : at + 1], key=lambda n: abs(n - rows))
        return self._known[near] * self._guess(rows) / self._guess(near)


class Speculator:
    """Drafts for the requests of one scheduler, from ``proposer``, at most ``most`` each.

    ``cost`` gives the seconds of a step of n rows; one of type StepTimes is told of every decode step.
    ``draft_cost`` is the same of a draft model, which is asked before a step is planned (``lengths``).
    """

    _PRIOR = 0.6  # acceptance expected before anything was verified

    def __init__(
        self,
        proposer: Proposer,
        cost: StepCost | None = None,
        *,
        most: int = MOST_DRAFTS,
        draft_cost: StepCost | None = None,
    ) -> None:
        self.proposer = proposer
        self.draft_cost = draft_cost
        self.cost: StepCost = StepTimes() if cost is None else cost
        self._most = most
        self._all = Acceptance()
        self._each: dict[int, Acceptance] = {}

    def drafts(self, request: Request, *, room: int, rows: int, tokens: float) -> Sequence[int]:
        """Guesses for ``request``, at most ``room``; ``rows`` and ``tokens`` as in ``best_length``."""
        most = min(room, self._most)
        if most <= 0:
            return ()
        guesses = self.proposer.propose(request, most)
        if not guesses:
            return ()
        record = self._each.setdefault(request.id, Acceptance())
        alpha = record.rate(self._all.rate(self._PRIOR))
        length = best_length(alpha, len(guesses), self.cost, rows=rows, tokens=tokens)
        if length == 0:
            record.doubt()
            self._all.doubt()
        for kept, token in enumerate(guesses[:length]):
            # The end of the text needs no draft: the row before it gives it anyway.
            if token in request.eos_ids or token in request.stop_ids:
                return guesses[:kept]
        return guesses[:length]

    def lengths(self, requests: Sequence[Request], most: Sequence[int], *, room: int, rows: int) -> list[int]:
        """How many drafts a draft model should make for each of ``requests``: see ``best_lengths``."""
        if self.draft_cost is None:
            return [0] * len(requests)
        records = [self._each.setdefault(request.id, Acceptance()) for request in requests]
        prior = self._all.rate(self._PRIOR)
        lengths = best_lengths(
            [record.rate(prior) for record in records],
            [min(n, self._most) for n in most],
            self.cost,
            self.draft_cost,
            rows=rows,
            room=room,
        )
        for record, bound, length in zip(records, most, lengths, strict=True):
            if length == 0 < bound:
                record.doubt()
                self._all.doubt()
        return lengths

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """What became of the drafts of one step."""
        record = self._each.get(request.id)
        if record is not None and drafted:
            record.add(drafted, accepted)
            self._all.add(drafted, accepted)

    def timed(self, rows: int, seconds: float) -> None:
        """A step of one row and drafts for each of its requests took ``seconds``."""
        if isinstance(self.cost, StepTimes):
            self.cost.add(rows, seconds)

    def forget(self, request: Request) -> None:
        """``request`` is finished."""
        self._each.pop(request.id, None)
        self.proposer.forget(request)
