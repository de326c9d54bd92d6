"""Guards and drafts: the masks of a step's head rows, and drafts cut where a guard would not follow them.

A guard is fed the drafts one by one, so that each row gets the mask for its own position, and then takes them
all back. Drafts end before the first one that is not allowed, and before one that would end the text: the row
before it gives that token too. In rejection mode they end with it: to leave a draft out because of what it
is would change what the others are distributed like.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import msgspec

from spola.core.guard import Guard
from spola.core.step import Slice, SliceOutput, Step, unpack_ids
from spola.engine.request import Request

__all__ = ["guarded"]


def guarded(step: Step, requests: Mapping[int, Request], vocab: int) -> tuple[Step, dict[int, SliceOutput]]:
    """``step`` with masks and cut drafts, and the outputs of requests whose guard failed."""
    faults: dict[int, SliceOutput] = {}
    changed: dict[int, Slice] = {}
    for piece in step.slices:
        guard = requests[piece.id].guard
        if guard is None or not piece.n_samples:
            continue
        drafts = unpack_ids(piece.ids)[piece.n - piece.n_drafts :]
        try:
            rows, some = _rows(guard, drafts, 4 * ((vocab + 31) // 32), whole=piece.proposals != 0)
        except Exception as error:
            faults[piece.id] = SliceOutput(error=f"the stop or grammar matcher failed: {error}")
            continue
        cut = piece.n_drafts - (len(rows) - 1)
        if cut or some:
            changed[piece.id] = msgspec.structs.replace(
                piece,
                ids=piece.ids[: 4 * (piece.n - cut)],
                n_head=piece.n_head - cut,
                n_drafts=piece.n_drafts - cut,
                masks=b"".join(rows) if some else None,
            )
    if changed:
        step = msgspec.structs.replace(step, slices=tuple(changed.get(s.id, s) for s in step.slices))
    return step, faults


def _rows(guard: Guard, drafts: array[int], size: int, *, whole: bool) -> tuple[list[bytes], bool]:
    """The mask of the row before each draft that stays, and of the last; whether any restricts anything."""
    rows: list[bytes] = []
    some = False
    taken = 0
    try:
        for place in range(len(drafts) + 1):
            buffer = bytearray(size)
            restricts = guard.mask(memoryview(buffer).cast("I"))
            rows.append(bytes(buffer) if restricts else b"\xff" * size)
            some = some or restricts
            if place == len(drafts):
                break
            token = drafts[place]
            legal = rows[-1][token // 8] >> (token % 8) & 1
            taken += legal
            if not legal or guard.accept((token,)) is not None:
                if whole:
                    rows.append(b"\xff" * size)  # what is drawn behind this draft does not count
                break
    finally:
        if taken:
            guard.rollback(taken)
    return rows, some
