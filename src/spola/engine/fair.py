"""Order of service between keys and between priority classes. Numbers only: no queue is kept here.

Between keys: start-time fair queueing (Goyal, Vin, Cheng 1996). A request's tag is the virtual time at which
its key's earlier requests would have been served, had all keys shares by weight; it is set once, at arrival.
Between classes: a waiting request rises by one class for every period that it has waited, up to the best
class that is there, so that a lower class waits long but not for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spola.engine.request import Rank, Request

__all__ = ["FairTags", "Order", "age", "cost_of"]

MANY_KEYS = 1024
USUAL_OUTPUT = 256  # tokens that a request is charged for when it does not say how many it wants at most
LOOKS = 8  # how often in a period ages are looked at


class FairTags:
    """Start tags. Virtual time is the largest tag among those that have begun."""

    def __init__(self) -> None:
        self.now = 0.0
        self._finish: dict[str, float] = {}

    def tag(self, key: str, cost: float) -> float:
        """The tag of a request of ``key`` that arrives now and will cost ``cost`` tokens over its weight."""
        start = max(self.now, self._finish.get(key, 0.0))
        if len(self._finish) >= MANY_KEYS:
            # A key that is not ahead of virtual time is like one that was never seen.
            self._finish = {k: finish for k, finish in self._finish.items() if finish > self.now}
        self._finish[key] = start + cost
        return start

    def begun(self, tag: float) -> None:
        """A request with ``tag`` is served."""
        self.now = max(self.now, tag)


def age(waiting: Sequence[Request], best: int, now: float, period_s: float) -> bool:
    """Lift the requests that have waited long, to class ``best`` at most; whether there were any."""
    lifted = False
    for request in waiting:
        periods = int((now - request.waiting_since) / period_s)
        if periods > 0 and request.rank.priority > best:
            request.rank = Rank(max(best, request.rank.priority - periods), *request.rank[1:])
            request.waiting_since += periods * period_s
            lifted = True
    return lifted


def cost_of(request: Request) -> int:
    """Tokens that ``request`` is charged for: its prompt, and the output that it may have."""
    if request.want != "sample":
        return len(request.known)
    most = request.params.max_tokens
    return min(request.limit, len(request.known) + (USUAL_OUTPUT if most is None else most))


class Order:
    """Ranks of the requests of one engine: set at arrival, lifted by waiting."""

    def __init__(self, ageing_s: float) -> None:
        self._period_s = ageing_s
        self._tags = FairTags()
        self._arrivals = 0
        self._look_at = 0.0

    def arrive(self, request: Request) -> None:
        """Give ``request`` its rank."""
        tag = self._tags.tag(request.key, cost_of(request) / request.weight)
        request.rank = Rank(request.priority, tag, self._arrivals)
        self._arrivals += 1

    def begun(self, request: Request) -> None:
        self._tags.begun(request.rank.tag)

    def age(self, waiting: Sequence[Request], live: Iterable[Request], now: float) -> bool:
        """Lift who has waited long; whether the order of ``waiting`` has changed. Once per step at most."""
        if not waiting or now < self._look_at:
            return False
        self._look_at = now + self._period_s / LOOKS
        best = min(request.rank.priority for request in live)
        return age(waiting, best, now, self._period_s)
