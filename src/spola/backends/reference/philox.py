"""Philox4x32-10, the counter-based generator of Salmon et al. (SC '11): no state, a number per counter."""

from __future__ import annotations

__all__ = ["philox4x32", "uniform"]

_WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit words, with a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int, choice: int, purpose: int) -> float:
    """A number in [0, 1) with 53 random bits (docs/numerics.md, Sampling)."""
    words = philox4x32((position, choice, purpose, 0), (seed & _WORD, seed >> 32))
    return float(((words[0] << 32 | words[1]) >> 11) * 2.0**-53)
