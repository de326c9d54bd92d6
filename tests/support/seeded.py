"""Weights from a seed, by the names that tensors have in a Hugging Face folder.

Shared by the tests and by ``make_family_logits.py``, so it imports nothing of spola. Values are
scaled so that activations stay near one.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["digest", "seeded_weights"]


def seeded_weights(
    shapes: Mapping[str, Sequence[int]], seed: int, norm_mean: float, embedding_std: float
) -> dict[str, np.ndarray]:
    """f32 arrays for ``shapes``. ``norm_mean``: what norm weights lie around (0 where files store w - 1)."""
    return {name: _weight(name, tuple(s), seed, norm_mean, embedding_std) for name, s in shapes.items()}


def digest(weights: Mapping[str, np.ndarray]) -> str:
    """sha256 over all values in the order given: a change of NumPy's generator shows here."""
    state = hashlib.sha256()
    for values in weights.values():
        state.update(np.ascontiguousarray(values, "<f4").tobytes())
    return state.hexdigest()


def _weight(
    name: str, shape: tuple[int, ...], seed: int, norm_mean: float, embedding_std: float
) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    values = rng.standard_normal(shape)
    if name.endswith(".bias"):
        values *= 0.2
    elif len(shape) == 1:
        values = norm_mean + 0.2 * values
    elif any(part in name for part in ("embed", "wte", "wpe", "lm_head")):
        values *= embedding_std
    else:
        values *= 1.3 * shape[-1] ** -0.5
        if name.endswith("experts.gate_up_proj"):
            values *= 6.0  # so that the bounds of gpt-oss, which are 7, are met
    return values.astype(np.float32)
