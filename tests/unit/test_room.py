"""Room for tensors: memory is used again, but never while somebody looks at it."""

from __future__ import annotations

import pytest

from spola.formats.room import _KEPT, Room


def test_memory_is_used_again_once_it_is_dropped() -> None:
    room = Room()
    first = room.take(1000)
    first[:] = b"a" * 1000
    second = room.take(900)
    second[:] = b"b" * 900
    assert bytes(first) == b"a" * 1000
    first.release()
    third = room.take(10)
    assert bytes(third) == b"a" * 10  # the first one's memory
    assert len(third) == 10


@pytest.mark.parametrize("count", [100, _KEPT + 1])
def test_whatever_is_still_held_stays_as_it_was(count: int) -> None:
    room = Room()
    held = []
    for number in range(5):
        view = room.take(count)
        view[:3] = view[-3:] = bytes([number]) * 3
        held.append(view.toreadonly().cast("B")[1:])
        del view
    for number, view in enumerate(held):
        assert len(view) == count - 1
        assert bytes(view[:2]) == bytes(view[-3:])[:2] == bytes([number]) * 2


def test_large_memory_is_writable_from_end_to_end() -> None:
    view = Room().take(_KEPT + 5)
    assert len(view) == _KEPT + 5
    assert not view.readonly
    view[-1] = 7
    assert view[-1] == 7
