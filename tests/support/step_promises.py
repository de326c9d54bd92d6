"""What must hold of every Step of a scheduler: its order and fairness, whose blocks it writes and reads."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spola.backends.null import _ROOT, _link
from spola.core.step import Step
from spola.engine.admission import MAX_PASSED
from spola.engine.request import Request, Status
from support.engine_rig import Rig

__all__ = ["Before", "Promises"]


@dataclass
class Before:
    """How things stood when a step was asked for."""

    running: list[Request]
    ready: list[Request]  # decodes that are not in flight
    hashed: list[set[int]]  # of each pool, the blocks that can be found by their text
    prompt_rows: int | None


class Promises:
    """Of the scheduler in ``rig``. Counts in ``seen`` what happened, so that a test can tell it did."""

    def __init__(self, rig: Rig, seen: Counter[str]) -> None:
        self.rig, self.s, self.seen = rig, rig.scheduler, seen
        self.salted = False  # whether a request came with a salt, which may make hits shorter

    def before(self) -> Before:
        running = list(self.s.running)
        ready = [r for r in running if r.decoding and not r.in_flight]
        hashed = [{b for b, key in enumerate(pool.hashes) if key} for pool in self.s.kv.pools]
        return Before(running, ready, hashed, self.s.kv.prompt_rows())

    def check(self, step: Step | None, before: Before, flying: bool) -> None:
        """``flying``: whether other steps are in flight."""
        planned = [self.s.requests[piece.id] for piece in step.slices] if step else []
        assert [r.rank for r in planned] == sorted(r.rank for r in planned)
        victims = [r for r in before.running if r.status is Status.WAITING]
        self._order(planned, victims, before)
        self._queue()
        if self.s.shape.mixed and self.s.shape.context is None and not flying:
            ended = Status.FINISHED
            left_out = [r for r in before.ready if r not in planned + victims and r.status is not ended]
            assert not left_out, f"decodes left out: {left_out}"
        if step is not None:
            self._halves(step, before.running)
        self._sharing(planned, before)
        self._count(step, planned, victims, before)

    def _order(self, planned: list[Request], victims: list[Request], before: Before) -> None:
        """Who gives way has a worse rank than all who run; who comes does not come at a victim's cost."""
        newcomers = [r for r in planned if r not in before.running]
        if victims:
            assert not set(victims) & set(planned)
            assert all(min(v.rank for v in victims) > r.rank for r in planned)
            highest = min(v.rank.priority for v in victims)
            assert all(r.rank.priority < highest for r in newcomers), "admitted in a step that preempted"
            best = before.running[0]
            assert best not in victims or len(before.running) == 1 or newcomers, "the best rank was preempted"
            self.seen["gave way to a class"] += bool(newcomers)
        if self.s._batching != "continuous" and newcomers:
            assert all(r.first_token_s is None or r.preemptions for r in newcomers)
            self.seen["batch begun"] += not before.running

    def _queue(self) -> None:
        """Nobody is passed for ever, and no key has more seats than it may."""
        assert all(r.passed <= MAX_PASSED for r in self.s.waiting)
        most = self.s._prompts._key_seats
        if most is not None:
            seated = Counter(r.key for r in self.s.running)
            assert max(seated.values(), default=0) <= most
            self.seen["key held back"] += any(seated[r.key] == most for r in self.s.waiting)
        self.seen["passed"] += any(r.passed for r in self.s.waiting)
        self.seen["aged"] += any(r.rank.priority < r.priority for r in self.s.waiting)

    def _count(
        self, step: Step | None, planned: list[Request], victims: list[Request], before: Before
    ) -> None:
        seen, held = self.seen, before.prompt_rows
        seen["preempted"] += len(victims)
        seen["copied"] += step is not None and len(step.copies)
        seen["mixed"] += step is not None and len({piece.n == 1 for piece in step.slices}) == 2
        seen["drafts"] += step is not None and any(piece.n_drafts for piece in step.slices)
        seen["window freed"] += any(table.first for r in planned for table in r.tables)
        seen["lent to several"] += sum(any(table.lent for table in r.tables) for r in planned) > 1
        seen["held to what is not lent"] += held is not None and held < self.s.shape.rows

    def _halves(self, step: Step, before: list[Request]) -> None:
        """While a running prompt wants more rows, no other one has more than half of them."""
        shape = self.s.shape
        if not shape.mixed or shape.context is not None or shape.fixed_chunk or shape.prefills < shape.rows:
            return
        decoding = {r.id for r in before if r.decoding}
        rows = {piece.id: piece.n for piece in step.slices if piece.id not in decoding}
        for r in before:
            free = r.status is Status.RUNNING and r.id not in decoding and (r.id in rows or not r.in_flight)
            if free and rows.get(r.id, 0) < min(r.missing, shape.chunk):
                most = max((n for id, n in rows.items() if id != r.id), default=0)
                assert most <= (sum(rows.values()) + 1) // 2
                self.seen["halves"] += 1

    def _sharing(self, planned: list[Request], before: Before) -> None:
        """Nobody writes what others may read; hits are as long as the cache allows."""
        size = self.s.kv.block_size
        for r in planned:
            for pool, table in zip(self.s.kv.pools, r.tables, strict=True):
                for block in table.ids[r.computed // size :]:
                    assert pool.hashes[block] is None, "a block with a hash is written"
                    assert pool.refs[block] == 1, "a shared block is written"
        for g, index in enumerate(self.s.cache.indexes):
            cells = self.rig.runner._cells[g]
            for block, entry in index._entries.items():
                held = cells[block * size : (block + 1) * size]
                ids = array("i", entry.tokens)
                right = all(_link(held[i - 1], ids[i]) == held[i] for i in range(1, size))
                assert right, "a block does not hold the text that it is found by"
        owners = {}
        for r in self.s.running:
            for g, table in enumerate(r.tables):
                for block in table.ids[table.first :]:
                    salt = owners.setdefault((g, block), r.salt)
                    assert salt == r.salt, "a block is shared across salts"
        for r in planned:
            if r not in before.running and r.computed:
                self.seen["hit"] += 1
                self.seen["hit again"] += r.preemptions > 0
                self.seen["hit inside a block"] += r.computed % size > 0
                self.seen["all but one"] += r.decoding
                self.seen["generated found"] += r.computed > r.n_prompt
                assert r.want == "sample"
                self.seen["choice shares"] += r.leader is not None and r.computed == r.n_prompt - 1
                assert self.s.cache.enabled or r.leader is not None
        full = len(self.s.kv.groups) == 1 and self.s.kv.groups[0].kind == "full"
        if (
            full
            and len(planned) == 1
            and planned[0].leader is None
            and planned[0] not in before.running
            and self.s.cache.enabled
        ):
            self._hit(planned[0], before.hashed[0])

    def _hit(self, r: Request, hashed: set[int]) -> None:
        """The length of a hit from the contents of the blocks that had a hash, without looking at hashes."""
        runner, size = self.rig.runner, self.s.kv.block_size
        values, best, most = chain(r.known), 0, r.goal - 1
        texts = {tuple(runner._cells[0][b * size : (b + 1) * size]) for b in hashed}
        while r.want == "sample" and best < most:
            part = tuple(values[best : min(best + size, most)])
            common = max((shared(part, one) for one in texts), default=0)
            best += common
            if common < size:
                break
        fixed = self.s.shape.fixed_chunk
        if fixed and best < most:
            best -= best % fixed
        self.seen["hit compared"] += 1
        assert r.computed == best or (self.salted and r.computed < best)


def chain(ids: Sequence[int]) -> list[int]:
    """What the null backend keeps for each position of ``ids``."""
    out = [_ROOT]
    for token in ids:
        out.append(_link(out[-1], token))
    return out[1:]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
