"""Which experts a row goes to, and with what weight. The experts themselves are the model's."""

from __future__ import annotations

import numpy as np

from spola.backends.reference.arrays import F32, narrow
from spola.spec.decoder import Router

__all__ = ["route"]


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
