"""Hold a Step against a backend's Capabilities and RunnerConfig; name the first thing that is wrong.

For backends that must refuse what they cannot execute and for tests of the scheduler: a violation is the
engine's fault, never a user's. What the token ids and the blocks contain is not looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import msgspec

from spola.core.runner import Capabilities, RunnerConfig
from spola.core.step import RequestState, Slice, Step, unpack_ids

__all__ = ["StepError", "check_step", "is_decode", "outside_ids", "static"]

GONE = -1  # entry of a block that a window group gave back


class StepError(ValueError):
    """A Step that its backend said it cannot execute, or that contradicts itself."""


def static(capabilities: Capabilities, *, max_total_context: int = 4096) -> Capabilities:
    """``capabilities`` narrowed to what a compiled, static-shape device takes.

    Decode batches in buckets of 1, 2, 4 or 8; prompts one at a time, in chunks of 64; the two kinds never in
    one step; the contexts of a step bounded together. The shapes TPUs and IBM Spyre ask for.
    """
    return msgspec.structs.replace(
        capabilities,
        mixed_batch=False,
        batch_buckets=(1, 2, 4, 8),
        prefill_chunk=64,
        max_prefills=1,
        max_total_context=max_total_context,
    )


def is_decode(piece: Slice) -> bool:
    """One row beside its drafts. The last row of a prompt has the same shape and counts as one."""
    return piece.n - piece.n_drafts == 1


def check_step(
    step: Step, capabilities: Capabilities, config: RunnerConfig, *, goals: Mapping[int, int] | None = None
) -> None:
    """Raise StepError unless ``step`` fits.

    ``goals`` gives for each request id the number of positions its known tokens need; with it, a prefill
    slice that is shorter than the fixed chunk is refused unless it reaches that number.
    """
    ids = [piece.id for piece in step.slices]
    if len(set(ids)) != len(ids):
        raise StepError(f"step {step.index}: a request has two slices")
    _check_batch(step, capabilities, config)
    for piece in step.slices:
        try:
            _check_slice(piece, capabilities, config)
            _check_chunk(piece, capabilities, goals)
        except StepError as error:
            raise StepError(f"step {step.index}, request {piece.id}: {error}") from None
    _check_copies(step, config)
    _check_blocks(step, capabilities, config)


def _check_batch(step: Step, caps: Capabilities, config: RunnerConfig) -> None:
    def most(count: int, limit: int | None, what: str) -> None:
        if limit is not None and count > limit:
            raise StepError(f"step {step.index}: {count} {what}, at most {limit}")

    decodes = sum(map(is_decode, step.slices))
    prefills = len(step.slices) - decodes
    most(len(step.slices), config.max_seqs, "slices")
    most(step.n_rows, config.max_step_tokens, "rows")
    most(step.n_rows, caps.max_step_tokens, "rows")
    most(prefills, caps.max_prefills, "prefill slices")
    most(decodes, max(caps.batch_buckets, default=None), "decode slices")
    most(sum(s.start + s.n for s in step.slices), caps.max_total_context, "positions of context")
    if decodes and prefills and not caps.mixed_batch:
        raise StepError(f"step {step.index}: {decodes} decode and {prefills} prefill slices in one step")


def _check_slice(piece: Slice, caps: Capabilities, config: RunnerConfig) -> None:
    if piece.n < 1:
        raise StepError("a slice without rows")
    if piece.start < 0 or piece.start + piece.n > config.max_model_len:
        raise StepError(f"rows {piece.start} to {piece.start + piece.n} of {config.max_model_len} positions")
    if not 0 <= piece.n_head <= piece.n:
        raise StepError(f"{piece.n_head} head rows of {piece.n}")
    if not 0 <= piece.n_drafts < piece.n:
        raise StepError(f"{piece.n_drafts} drafts of {piece.n} rows")
    if piece.n_drafts and not caps.speculation:
        raise StepError("drafts for a backend without speculation")
    if len(piece.targets) > 4 * piece.n_head:
        raise StepError(f"{len(piece.targets) // 4} score targets for {piece.n_head} head rows")
    if len(piece.tables) != len(config.kv_groups):
        raise StepError(f"{len(piece.tables)} block tables for {len(config.kv_groups)} KV groups")


def _check_chunk(piece: Slice, caps: Capabilities, goals: Mapping[int, int] | None) -> None:
    chunk = caps.prefill_chunk
    if chunk is None or is_decode(piece):
        return
    if piece.start % chunk:
        raise StepError(f"a prefill slice that starts at {piece.start}, no multiple of {chunk}")
    if piece.n > chunk:
        raise StepError(f"a prefill slice of {piece.n} rows, chunks have {chunk}")
    if piece.n < chunk and goals is not None and piece.start + piece.n != goals[piece.id]:
        raise StepError(f"a prefill slice of {piece.n} rows in the middle of a prompt, chunks have {chunk}")


def _check_blocks(step: Step, caps: Capabilities, config: RunnerConfig) -> None:
    """Tables cover their rows with blocks that exist, and nobody else sees a block that is written."""
    size = caps.block_size
    for index, (group, n_blocks) in enumerate(zip(config.kv_groups, config.kv_blocks, strict=True)):
        tables = [unpack_ids(piece.tables[index]) for piece in step.slices]
        written: dict[int, int] = {}
        for piece, table in zip(step.slices, tables, strict=True):
            where = f"step {step.index}, request {piece.id}, KV group {index}"
            if len(table) < -(-(piece.start + piece.n) // size):
                raise StepError(f"{where}: {len(table)} blocks for {piece.start + piece.n} positions")
            dead = 0 if group.kind != "window" else max(0, piece.start - group.window + 1) // size
            _check_table(where, table, n_blocks, dead)
            for block in table[piece.start // size : -(-(piece.start + piece.n) // size)]:
                if written.setdefault(block, piece.id) != piece.id:
                    raise StepError(f"{where}: block {block} is written by request {written[block]} too")
        for piece, table in zip(step.slices, tables, strict=True):
            for block in table:
                if written.get(block, piece.id) != piece.id:
                    raise StepError(
                        f"step {step.index}, KV group {index}: request {piece.id} reads block {block}, "
                        f"which request {written[block]} writes"
                    )


def _check_copies(step: Step, config: RunnerConfig) -> None:
    """Sources and targets exist, and no block is the target of two copies."""
    targets = {(copy.group, copy.target) for copy in step.copies}
    if len(targets) != len(step.copies):
        raise StepError(f"step {step.index}: a block is the target of two copies")
    for copy in step.copies:
        n = config.kv_blocks[copy.group] if 0 <= copy.group < len(config.kv_blocks) else 0
        if not (0 <= copy.source < n and 0 <= copy.target < n):
            raise StepError(
                f"step {step.index}: copy of block {copy.source} to {copy.target} in KV group {copy.group}"
            )


def _check_table(where: str, table: array[int], n_blocks: int, dead: int) -> None:
    for entry, block in enumerate(table):
        if not 0 <= block < n_blocks and not (block == GONE and entry < dead):
            raise StepError(f"{where}: entry {entry} is block {block}, there are {n_blocks}")
    live = [block for block in table if block != GONE]
    if len(set(live)) != len(live):
        raise StepError(f"{where}: a block is twice in the table")


def outside_ids(state: RequestState, vocab: int) -> str:
    """What is wrong with the ids that ``state`` allows or bans, as one line; "" if nothing is."""
    named = {
        "allowed_token_ids": tuple(state.params.allowed_token_ids or ()),
        "ends": unpack_ids(state.ends),
        "bad_words": [token for ids in state.bad for token in unpack_ids(ids)],
    }
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < vocab:
                return f"{name}: token id {token} is outside of the vocabulary of {vocab}"
    if not all(state.bad):
        return "bad_words: an empty sequence"
    return ""
