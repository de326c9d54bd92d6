"""Which experts a row goes to, and with what weight. The experts themselves are the model's."""

from __future__ import annotations

import numpy as np

from spola.backends.reference.arrays import F32, F64, Ints, cephes_exp, narrow
from spola.spec.decoder import Router

__all__ = ["route", "route_f32"]

_TINY = 1e-20  # what a sum of sigmoids is divided with at least


def route(scores: F32, used: int, router: Router, bias: F32 | None) -> F32:
    """Weights [rows, experts] from router outputs [rows, experts], 0 for experts that are not chosen.

    See ``Router``; ties go to the lower number. The weights of a softmax are divided by their sum with
    ``normalise`` (Mixtral, arXiv 2401.04088). Functions in f64, weights in f32.
    """
    wide = scores.astype(np.float64)
    if router.scoring == "sigmoid":
        wide = 1.0 / (1.0 + np.exp(-wide))
        chosen = _choose(wide if bias is None else wide + bias, used, router)
    else:
        chosen = _choose(wide if bias is None else wide + bias, used, router)
        wide = np.exp(wide - wide.max(axis=1, keepdims=True))
        wide /= wide.sum(axis=1, keepdims=True)
    kept = np.take_along_axis(wide, chosen, axis=1)
    if router.normalise:
        kept /= kept.sum(axis=1, keepdims=True) + (_TINY if router.scoring == "sigmoid" else 0.0)
    out = np.zeros_like(wide)
    np.put_along_axis(out, chosen, kept * router.scale, axis=1)
    return narrow(out)


def route_f32(scores: F32, used: int, router: Router, bias: F32 | None) -> F32:
    """The same, operation by operation as docs/numerics.md has it."""
    if router.scoring == "sigmoid":
        values = np.float32(1) / (np.float32(1) + cephes_exp(-scores))
        chosen = np.sort(_choose(values if bias is None else values + bias, used, router), axis=1)
        weights = np.take_along_axis(values, chosen, axis=1)
        if router.normalise:
            weights = weights / (_sum(weights) + np.float32(_TINY))[:, None]
    else:
        chosen = np.sort(_choose(scores if bias is None else scores + bias, used, router), axis=1)
        values = cephes_exp(scores - scores.max(axis=1, keepdims=True))
        picked = np.take_along_axis(values, chosen, axis=1)
        weights = picked / _sum(picked if router.normalise else values)[:, None]
    out = np.zeros_like(values)
    np.put_along_axis(out, chosen, weights * np.float32(router.scale), axis=1)
    return out


def _sum(x: F32) -> F32:
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = total + column
    return total


def _choose(values: F32 | F64, used: int, router: Router) -> Ints:
    """Numbers [rows, used] of the experts with the largest ``values``, best first, among the best groups."""
    if router.groups > 1:
        rows, experts = values.shape
        parts = values.reshape(rows, router.groups, -1)
        ranked = np.sort(parts, axis=2)
        worth = ranked[..., -1] + ranked[..., -2] if router.selection_bias else ranked[..., -1]
        best = np.argsort(-worth, axis=1, kind="stable")[:, : router.groups_used]
        taken = np.zeros(worth.shape, np.bool_)
        np.put_along_axis(taken, best, True, axis=1)
        values = np.where(taken[..., None], parts, -np.inf).reshape(rows, experts)
    return np.argsort(-values, axis=1, kind="stable")[:, :used]
