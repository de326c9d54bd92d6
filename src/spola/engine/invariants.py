"""The scheduler's invariants, all of them, as one function: run after every call under SPOLA_CHECK.

Raises AssertionError on the first that does not hold. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spola.engine.request import Status

if TYPE_CHECKING:
    from spola.engine.scheduler import Scheduler

__all__ = ["check_scheduler"]


def check_scheduler(scheduler: Scheduler) -> None:
    """Queues, blocks and requests agree with each other."""
    waiting, running, kv = scheduler.waiting, scheduler.running, scheduler.kv
    for queue, status in ((waiting, Status.WAITING), (running, Status.RUNNING)):
        ranks = [request.rank for request in queue]
        assert ranks == sorted(set(ranks)), f"the {status.value} queue is not in rank order"
        assert all(request.status is status for request in queue), f"a request in {status.value} is not"
    assert {r.id for r in waiting} | {r.id for r in running} == set(scheduler.requests), (
        "a request is in no queue"
    )
    assert len(running) <= scheduler.shape.seqs, f"{len(running)} running, {scheduler.shape.seqs} allowed"
    kv.check(running)
    for index in scheduler.cache.indexes:
        index.check()
    assert not kv.copies, "a copy that no step has"
    for request in waiting:
        assert not request.tables, f"request {request.id} waits with blocks"
        request.check()
    for request in running:
        request.check()
        for table in request.tables:
            covered = len(table.ids) * kv.block_size
            assert covered >= request.computed, f"request {request.id}: computed positions without a block"
            assert table.reach >= request.goal or table.promised == 0, "a promise outlived its prompt"
    if not running:
        assert all(pool.used == pool.promised == pool.loose == pool.lent == 0 for pool in kv.pools), (
            "blocks in use, nothing runs"
        )
