"""Who gives way to a waiting request of a better priority class, and for the next token of a running one.

Recompute only: a victim's blocks are given back and its tokens computed again. Between equal classes nobody
gives way to a waiting request, or two of them would take each other's place for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from spola.engine.kv import KvSpace, Room
from spola.engine.request import Request

__all__ = ["victim_for", "victims_for"]


def victim_for(request: Request, running: Sequence[Request]) -> Request | None:
    """The worst-ranked request whose blocks nobody is writing; None: wait for a step in flight.

    ``running`` in rank order; ``request``, which needs a block, is one of them and the last resort.
    """
    waits = False
    for victim in reversed(running):
        if victim is request:
            return None if waits else victim
        if not victim.in_flight:
            return victim
        waits = True
    raise AssertionError(f"request {request.id} needs blocks but does not run")


def victims_for(
    head: Request,
    running: Sequence[Request],
    kv: KvSpace,
    *,
    seats: int,
    spare: Sequence[int],
    reach: int,
    context: int | None,
) -> list[Request]:
    """The worst of ``running`` that must give way so that ``head`` can begin, worst first.

    Empty when it can begin anyway, and when it could not even if every worse class gave way. ``spare`` blocks
    of each group stay free as long as anybody else runs; ``context`` bounds the positions of all together.
    What the prefix cache holds of ``head`` is not looked at: it then needs less.
    """
    room = Room(kv)
    left = len(running)
    positions = sum(r.reach for r in running) + head.reach
    victims: list[Request] = []
    for victim in reversed([*running, None]):
        if victim is not None:
            if victim.rank.priority <= head.rank.priority or victim.in_flight:
                return []
            room.give_back(victim)
            left -= 1
            positions -= victim.reach
            victims.append(victim)
        fits = context is None or not left or positions <= context
        if fits and left < seats and room.holds(reach, spare if left else (0,) * len(spare)):
            return victims
    return []
