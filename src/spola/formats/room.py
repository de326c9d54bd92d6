"""Room for what is read of a file: memory that is used again when nothing looks at it any more.

A ``bytearray`` for each tensor is thousands of small pages that the system makes, clears and takes back: on a
virtual machine that took longer than reading and packing together.
"""

from __future__ import annotations

import mmap

from spola.core import flags

__all__ = ["Room"]

_SPARES = 2  # a taker still holds one tensor while it asks for the next
_KEPT = 32 << 20  # larger ones are not kept: they would stand beside all the weights at the end


class Room:
    """Hands out buffers, whose former content is undefined, and keeps up to two of at most 32 MiB."""

    def __init__(self) -> None:
        self._spares: list[bytearray] = []

    def take(self, count: int) -> memoryview:
        """``count`` bytes to write to, nobody else's while a view of them lives. Raises MemoryError."""
        if count > _KEPT:
            return memoryview(_large(count))
        for spare in self._spares:
            if len(spare) >= count and _unseen(spare):
                return memoryview(spare)[:count]
        fresh = bytearray(count)
        self._spares = [*self._spares[1 - _SPARES :], fresh]
        return memoryview(fresh)


def _unseen(spare: bytearray) -> bool:
    """Whether no view of ``spare`` is left: with one, its length cannot change."""
    try:
        spare.append(0)
    except BufferError:
        return False
    spare.pop()
    return True


def _large(count: int) -> mmap.mmap:
    """Memory in huge pages where the system has them, gone with the last view of it."""
    try:
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {count} bytes of a tensor") from error
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
    if advice is not None and flags.read("SPOLA_HUGE_PAGES"):
        memory.madvise(advice)
    return memory
