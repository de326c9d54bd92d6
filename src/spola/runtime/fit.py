"""What fits: memory for the KV cache and the longest request, decided before anything is allocated.

The trained context is a ceiling, never an allocation. Whatever cannot fit is refused with its numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from spola.core.errors import CapacityError, ConfigError
from spola.core.runner import BLOCK_TOKENS, KvGroup
from spola.engine.windows import WindowBound
from spola.runtime.machine import Machine, describe_bytes

__all__ = ["USABLE", "WORKSPACE", "Fit", "Layout", "fit", "widest_step"]

USABLE = 0.9  # of what the process may still use: the rest is for the interpreter and its surprises
KV_SHARE = 0.5  # of what the weights leave, taken for the KV cache unless told otherwise
WORKSPACE = 64 << 20  # activations, logits, where the backend does not tell
LONGEST = 1 << 20  # tokens of a request unless asked for: tables of positions are filled at load


@dataclass(frozen=True, slots=True)
class Fit:
    """``blocks`` per group; ``usable``: what weights, KV cache and workspace may take together, in bytes."""

    blocks: tuple[int, ...]
    kv_bytes: int
    usable: int
    max_model_len: int
    reason: str


def fit(
    groups: Sequence[KvGroup],
    *,
    weights: int,
    trained: int,
    machine: Machine,
    max_seqs: int,
    tables: int = 0,
    workspace: int = WORKSPACE,
    draft: int = 0,
    loading: int = 0,
    block_size: int = BLOCK_TOKENS,
    max_slice: int = BLOCK_TOKENS,
    max_rows: int | None = None,
    kv_memory: int | float | None = None,
    max_model_len: int | None = None,
) -> Fit:
    """Choose KV blocks and ``max_model_len`` for a model of ``weights`` bytes trained for ``trained`` tokens.

    ``workspace``: bytes that a step computes in. ``tables``: bytes that a backend holds for each position up
    to ``max_model_len`` (sines and cosines).
    ``draft``: the part of ``weights`` that is a draft model's. ``loading``: the most bytes of weights at a
    time while they are loaded.
    ``max_slice`` is the most rows one request has in a step and ``max_rows`` all together: they bound what a
    window group holds at once. None: each request's window group is to hold its own step's rows.
    ``kv_memory`` (bytes, or as a float a fraction of what the process may use) and ``max_model_len`` (tokens)
    are what the person asked for, or None. By default
    the cache holds ``max_seqs`` requests of full length, or as much as half of the free memory.

    Raises CapacityError, with the numbers, where something cannot fit; ConfigError for a length above the
    trained context.
    """
    usable = int(min(machine.memory_limit, machine.memory_available) * USABLE)
    left = usable - weights - workspace
    of_draft = f" ({describe_bytes(draft)} of it for the draft model)" if draft else ""
    less = "no draft model (--speculate off); or a smaller model" if draft else "or a smaller model"
    if isinstance(kv_memory, float):
        kv_memory = int(kv_memory * usable)
    if left <= 0:
        raise CapacityError(
            f"the weights need {describe_bytes(weights)}{of_draft} and this process may use "
            f"{describe_bytes(usable)} "
            f"({machine.memory_limit_reason}), {describe_bytes(workspace)} of it for workspace. "
            f"Three ways out: let it use {describe_bytes((weights + workspace) / USABLE * 1.1)}; "
            f"weights of at most {describe_bytes(max(usable - workspace, 0))}, in a smaller type "
            f"(--weights); {less}"
        )
    if loading > usable:
        raise CapacityError(
            f"loading the weights takes {describe_bytes(loading)} at its peak, where a tensor is held beside "
            f"what it is packed into, and this process may use {describe_bytes(usable)} "
            f"({machine.memory_limit_reason}). Three ways out: let it use "
            f"{describe_bytes(loading / USABLE)}; a smaller type of weights; or a smaller model"
        )
    if max_model_len is not None and max_model_len > trained:
        raise ConfigError(f"max_model_len is {max_model_len}, but the model was trained for {trained} tokens")
    wanted = max_model_len or min(trained, LONGEST)
    layout = Layout(groups, block_size, max_seqs, max_slice, max_rows)
    if kv_memory is not None and kv_memory > left:
        raise CapacityError(
            f"kv_memory is {describe_bytes(kv_memory)}, but {describe_bytes(weights)} of weights{of_draft} "
            "leave "
            f"{describe_bytes(left)} of the {describe_bytes(usable)} this process may use. Three ways out: "
            f"--kv-memory {left} or less; smaller weights (--weights); or "
            f"{describe_bytes((weights + workspace + kv_memory) / USABLE)} of memory"
        )
    budget = kv_memory if kv_memory is not None else int(left * KV_SHARE)
    full = layout.blocks_of(wanted)
    blocks = layout.most(budget, max_seqs * full)
    if blocks < 1 or (max_model_len is not None and blocks < full):
        need = max_model_len or block_size
        raise CapacityError(
            f"{need} tokens need {describe_bytes(layout.bytes(layout.blocks_of(need)))} of KV cache and "
            f"{describe_bytes(budget)} are there. Three ways out: {layout.ways(need, blocks, left)}"
        )
    length = min(wanted, blocks * block_size, (left - layout.bytes(blocks)) // tables if tables else wanted)
    if length < 1 or (max_model_len is not None and length < max_model_len):
        raise CapacityError(
            f"{max_model_len or block_size} tokens need {describe_bytes(layout.bytes(blocks))} of KV cache "
            f"and {describe_bytes(tables * (max_model_len or block_size))} of position tables; weights leave "
            f"{describe_bytes(left)}; lower max_model_len or kv_memory"
        )
    reason = "as asked" if max_model_len is not None else "trained context"
    if length < wanted:
        reason = f"what fits of the trained {trained}"
    elif max_model_len is None and length < trained:
        reason = f"the most unless asked, of the trained {trained}"
    return Fit(layout.split(blocks), layout.bytes(blocks), usable, length, reason)


def widest_step(step_tokens: int, max_seqs: int, longest: int) -> int:
    """Rows of the widest step: ``step_tokens``, or all tokens of ``max_seqs`` requests where that is less."""
    return min(step_tokens, max_seqs * longest)


@dataclass(frozen=True, slots=True)
class Layout:
    """How ``blocks`` of positions spread over groups: a window group needs no more than its windows.

    ``max_slice``, ``max_rows`` as in ``fit``.
    """

    groups: Sequence[KvGroup]
    block_size: int
    max_seqs: int
    max_slice: int
    max_rows: int | None = None

    def ways(self, need: int, blocks: int, left: int) -> str:
        """What could be asked for instead of ``need`` tokens for each request."""
        more = self.bytes(self.blocks_of(need))
        fits = blocks * self.block_size
        shorter = f"--max-model-len {fits} or less" if fits else "a smaller model"
        larger = f"--kv-memory {more}" if more <= left else f"{describe_bytes(more - left)} more memory"
        return f"{shorter}; {larger}; or a smaller --kv-dtype (int8 takes about half of f16)"

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def split(self, blocks: int) -> tuple[int, ...]:
        """Blocks of each group when the full ones have ``blocks``."""
        return tuple(min(blocks, self._ceiling(group, blocks)) for group in self.groups)

    def bytes(self, blocks: int) -> int:
        counts = self.split(blocks)
        return sum(
            n * group.bytes_per_token * self.block_size for n, group in zip(counts, self.groups, strict=True)
        )

    def most(self, budget: int, limit: int) -> int:
        """The largest number of blocks, ``limit`` at most, whose bytes are within ``budget``."""
        return bisect_right(range(limit + 1), budget, key=self.bytes) - 1

    def _ceiling(self, group: KvGroup, blocks: int) -> int:
        if group.kind != "window":
            return blocks
        bound = WindowBound.of(
            group.window, block_size=self.block_size, max_slice=self.max_slice, max_rows=self.max_rows
        )
        return bound.together(self.max_seqs)
