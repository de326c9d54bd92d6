"""From one row of logits to a token, its log-probability and scores: docs/numerics.md, section Sampling.

Also what a backend keeps of a request while it runs: penalty counts and pooling sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import F32, F64, Ints, cephes_exp, sum16
from spola.backends.reference.philox import uniform
from spola.backends.shapes import outside_ids
from spola.core.errors import RequestError
from spola.core.params import SamplingParams
from spola.core.step import RequestState, TokenLogprob, unpack_ids

__all__ = [
    "Choice",
    "Live",
    "accepts",
    "choose",
    "draft_uniform",
    "log_sum_exp",
    "residual",
    "target_uniform",
    "token_logprob",
    "verify",
]

_CHUNK = 4096
_TARGET, _DRAFT, _ACCEPT, _RESIDUAL = 0, 1, 2, 3  # purposes of a draw


class Live:
    """A request between its first step and ``gone``: its state, and what its tokens so far amount to."""

    def __init__(self, state: RequestState, vocab: int, hidden: int) -> None:
        self.state = state
        known = np.asarray(unpack_ids(state.ids), np.int64)
        self.n_known = len(known)
        inside = (known >= 0) & (known < vocab)
        output = np.arange(len(known)) >= state.n_prompt
        self.counts = np.bincount(known[inside & output], minlength=vocab)  # of generated ids
        self.seen = np.zeros(vocab, np.bool_)  # prompt and output
        self.seen[known[inside]] = True
        self.pooled: F64 = np.zeros(hidden, np.float64)
        self.output: list[int] = known[state.n_prompt :].tolist()
        self.problem = outside_ids(state, vocab)

    def accept(self, token: int) -> None:
        """Count one more generated token."""
        self.counts[token] += 1
        self.seen[token] = True
        self.n_known += 1
        self.output.append(token)


def log_sum_exp(logits: F32) -> float:
    """ln(sum(exp(logits))) of one finite row, in chunks of 4096 ids."""
    top = np.float32(logits.max()) + np.float32(0)
    total = 0.0
    for start in range(0, len(logits), _CHUNK):
        total += float(sum16(cephes_exp(logits[start : start + _CHUNK] - top)))
    return float(top) + math.log(total)


def token_logprob(logits: F32, token: int, alternatives: int) -> TokenLogprob:
    """The log-probability of ``token`` under the raw logits, with the best ``alternatives``."""
    lse = log_sum_exp(logits)
    top = _best(logits, alternatives) if alternatives else np.zeros(0, np.int64)
    pairs = tuple((int(i), float(logits[i]) - lse) for i in top if logits[i] > -np.inf)
    return TokenLogprob(token, float(logits[token]) - lse, pairs)


@dataclass(frozen=True)
class Choice:
    """What can be drawn at a position: ``ids`` ascending, with their weights; ``adjusted`` logits of all ids.

    Of a greedy request ``ids`` holds the one that is taken.
    """

    adjusted: F32
    ids: Ints
    weights: F32
    greedy: bool

    def draw(self, u: float) -> int:
        """The id whose share of the running sum of weights ``u`` in [0, 1) falls into."""
        running = _running(self.weights)
        return int(self.ids[int(np.searchsorted(running, u * running[-1], side="right"))])

    def probabilities(self) -> F64:
        """Of all ids."""
        out = np.zeros(len(self.adjusted), np.float64)
        out[self.ids] = self.weights / _running(self.weights)[-1]
        return out

    def spread(self) -> F32:
        """Weights of all ids."""
        out = np.zeros(len(self.adjusted), np.float32)
        out[self.ids] = self.weights
        return out

    def processed(self) -> F32:
        """Logits of the distribution that is drawn from; for greedy, that after the penalties."""
        if self.greedy:
            return self.adjusted
        out = np.full_like(self.adjusted, -np.inf)
        out[self.ids] = self.adjusted[self.ids]
        return out


def choose(logits: F32, live: Live, position: int, mask: Ints | None) -> Choice:
    """What ``position`` draws from, by the request's parameters. ``mask``: uint32 bits, or None.

    Raises RequestError when nothing is allowed.
    """
    params = live.state.params
    adjusted = _penalise(_restrict(logits, live, position, mask), live, params)
    if not params.greedy:
        adjusted = adjusted / np.float32(params.temperature)
    top = adjusted.max()
    if not np.isfinite(top):
        none = top == -np.inf
        raise RequestError(
            "the mask allows no token that is not banned"
            if none
            else "a logit is not finite after penalties and temperature"
        )
    if params.greedy:
        return Choice(adjusted, np.array([np.argmax(adjusted)]), np.ones(1, np.float32), True)
    return Choice(adjusted, *_survivors(adjusted, params), False)


def accepts(p: F64, q: F64, draft: int, u: float) -> bool:
    """Whether a draft from ``q`` is taken for the target ``p``, both probabilities of all ids."""
    return bool(q[draft] > 0 and u * q[draft] < p[draft])


def residual(p: F64, q: F64) -> F64:
    """Weights to draw from in place of a draft that was refused: what ``p`` has more than ``q``."""
    more: F64 = np.maximum(0.0, p - q)
    return more


def verify(choice: Choice, live: Live, position: int, draft: int, q: F32) -> tuple[int, bool]:
    """Rejection mode (Leviathan et al., arXiv 2211.17192): the token for ``position`` and if it is ``draft``.

    ``q``: weights of all ids, from which ``draft`` was drawn.
    """
    p = choice.probabilities()
    drafted = q / _running(q)[-1]
    request, state = live.state.choice, live.state
    if accepts(p, drafted, draft, uniform(state.seed, position, request, _ACCEPT)):
        return draft, True
    u = uniform(state.seed, position, request, _RESIDUAL)
    running = np.cumsum(residual(p, drafted))
    if not running[-1] > 0:
        return choice.draw(u), False
    return int(np.searchsorted(running, u * running[-1], side="right")), False


def target_uniform(live: Live, position: int) -> float:
    """The number that decides what is drawn at ``position``."""
    return uniform(live.state.seed, position, live.state.choice, _TARGET)


def draft_uniform(live: Live, position: int) -> float:
    """The number that decides which draft is drawn for ``position``."""
    return uniform(live.state.seed, position, live.state.choice, _DRAFT)


def _restrict(logits: F32, live: Live, position: int, mask: Ints | None) -> F32:
    out = logits.copy()
    params = live.state.params
    if mask is not None:
        bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")[: len(out)]
        out[bits == 0] = -np.inf
    if params.allowed_token_ids is not None:
        banned = np.ones(len(out), np.bool_)
        banned[list(params.allowed_token_ids)] = False
        out[banned] = -np.inf
    for packed in live.state.bad:
        *before, last = unpack_ids(packed)
        if live.output[max(0, len(live.output) - len(before)) :] == before:
            out[last] = -np.inf
    if position - live.state.n_prompt < params.min_tokens:
        out[np.asarray(unpack_ids(live.state.ends), np.int64)] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        if token >= len(out):
            raise RequestError(
                f"logit_bias holds id {token}; the vocabulary has {len(out)}", param="logit_bias"
            )
        out[token] += np.float32(bias)
    return out


def _penalise(logits: F32, live: Live, params: SamplingParams) -> F32:
    out = logits
    if params.repetition_penalty != 1.0:
        by = np.float32(params.repetition_penalty)
        out = np.where(live.seen, np.where(out > 0, out / by, out * by), out)
    if params.frequency_penalty or params.presence_penalty:
        counts = live.counts.astype(np.float32)
        less = np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)
        out = np.where(live.counts > 0, out - less, out)
    return out


def _best(logits: F32, count: int) -> Ints:
    """Ids of the ``count`` largest, by (-logit, id)."""
    return np.argsort(-logits, kind="stable")[:count]


def _survivors(scaled: F32, params: SamplingParams) -> tuple[Ints, F32]:
    """Ids that top-k, top-p and min-p leave, ascending, with their weights."""
    n = len(scaled)
    weights = cephes_exp(scaled - scaled.max())
    top_k = params.top_k if 0 < params.top_k < n else 0
    kept = np.arange(n)
    if top_k:
        kept = _best(scaled, top_k)
        total = float(np.cumsum(weights[kept].astype(np.float64))[-1])
    else:
        total = sum(float(_running(weights[c : c + _CHUNK])[-1]) for c in range(0, n, _CHUNK))
    if params.top_p < 1.0:
        order = kept if top_k else _best(scaled, n)
        reached = int(np.searchsorted(_running(weights[order]), params.top_p * total, side="left"))
        kept = order[: reached + 1]
    kept = kept[weights[kept] >= params.min_p]
    kept = np.sort(kept)
    return kept, weights[kept]


def _running(weights: F32) -> F64:
    return np.cumsum(weights.astype(np.float64))
