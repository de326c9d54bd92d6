"""Which experts a row goes to, and with what weight. The experts themselves are the model's."""

from __future__ import annotations

import numpy as np

from spola.backends.reference.arrays import F32, cephes_exp, narrow
from spola.spec.decoder import Router

__all__ = ["route", "route_f32"]


def route(scores: F32, used: int, router: Router) -> F32:
    """Weights [rows, experts] from router scores [rows, experts], 0 for experts that are not chosen.

    The ``used`` largest scores win, ties by lower number; with ``normalise`` they are divided by their
    sum (Mixtral, arXiv 2401.04088). Softmax in f64, weights in f32.
    """
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :used]
    wide = scores.astype(np.float64)
    wide = np.exp(wide - wide.max(axis=1, keepdims=True))
    wide /= wide.sum(axis=1, keepdims=True)
    kept = np.take_along_axis(wide, chosen, axis=1)
    if router.normalise:
        kept /= kept.sum(axis=1, keepdims=True)
    out = np.zeros_like(wide)
    np.put_along_axis(out, chosen, kept * router.scale, axis=1)
    return narrow(out)


def route_f32(scores: F32, used: int, router: Router) -> F32:
    """The same, operation by operation as docs/numerics.md has it."""
    chosen = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :used], axis=1)
    e = cephes_exp(scores - scores.max(axis=1, keepdims=True))
    picked = np.take_along_axis(e, chosen, axis=1)
    total = np.zeros(len(e), np.float32)
    for column in (picked if router.normalise else e).T:
        total = total + column
    out = np.zeros_like(e)
    np.put_along_axis(out, chosen, picked / total[:, None] * np.float32(router.scale), axis=1)
    return out
