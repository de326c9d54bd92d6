"""Order of service between keys and between priority classes. Numbers only: no queue is kept here.

Between keys: start-time fair queueing (Goyal, Vin, Cheng 1996). A request's tag is the virtual time at which
its key's earlier requests would have been served, had all keys shares by weight; it is set once, at arrival.
Between classes: a waiting request rises by one class for every period that it has waited, up to the best
class that is there, so that a lower class waits long but not for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from spola.engine.request import Rank, Request, Status

__all__ = ["Company", "FairTags", "Order", "Seats", "age", "cost_of"]

MANY_KEYS = 1024
USUAL_OUTPUT = 256  # tokens that a request is charged for when it does not say how many it wants at most
RECENT_S = 30.0  # a key is in company with others until so long after its last request has ended
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


class Seats:
    """Places that keys have among ``running``, as long as a step is planned. ``most`` for one key; None: all.

    The one count of them: for who may begin, and for whose turn it is.
    """

    def __init__(self, running: Iterable[Request], most: int | None) -> None:
        self._taken: Counter[str] = Counter()
        self._loads: dict[str, float] = {}  # places over weights
        self._most = most
        for request in running:
            self.take(request)

    def full(self, key: str) -> bool:
        """Whether ``key`` has all the places that one may have."""
        return self._most is not None and self._taken[key] >= self._most

    def take(self, request: Request) -> None:
        """``request`` has a place."""
        self._taken[request.key] += 1
        self._loads[request.key] = self._loads.get(request.key, 0.0) + 1 / request.weight

    def load(self, request: Request) -> float:
        """Places over weight of the key of ``request``, its own included."""
        waits = request.status is Status.WAITING
        return self._loads.get(request.key, 0.0) + (1 / request.weight if waits else 0.0)

    def light(self, request: Request) -> bool:
        """Whether another key has at least twice the load of that of ``request``."""
        return 2 * self.load(request) <= max(self._loads.values(), default=0.0)


class Company:
    """Whether several keys use the engine, now or lately: whoever comes next then should not wait long."""

    def __init__(self) -> None:
        self._here: Counter[str] = Counter()  # requests that have not ended
        self._gone: dict[str, float] = {}  # keys without any -> until when they count; earliest first

    def came(self, key: str) -> None:
        self._here[key] += 1
        self._gone.pop(key, None)

    def left(self, key: str, now: float) -> None:
        """A request of ``key`` has ended."""
        self._here[key] -= 1
        if not self._here[key]:
            del self._here[key]
            self._gone[key] = now + RECENT_S

    def several(self, now: float) -> bool:
        while self._gone and (first := next(iter(self._gone.items())))[1] <= now:
            del self._gone[first[0]]
        return len(self._here) + len(self._gone) > 1


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
