"""``explain``: after an answer, what its steps computed and among which candidates each token was drawn.

What ``spola run --explain --json`` shows (``runtime.explain``), in parts as they are made. The answer's
logits are computed once more for it, on the account of whoever asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from spola.runtime.answer import Job
from spola.runtime.desk import Desk
from spola.runtime.explain import explain_steps, explain_tokens
from spola.runtime.limits import kept_limits
from spola.server.visit import Visit

__all__ = ["explained", "explained_whole"]


async def explained(desk: Desk, job: Job, visit: Visit) -> AsyncGenerator[dict[str, Any], None]:
    """First ``steps``, then each of ``tokens`` by itself; lists to be joined. Raises SpolaError.

    Bounds are there where this machine's limits were measured before: a server measures nothing.
    """
    service = desk.service
    async with desk.explaining.turn():
        visit.account.quota.spend(len(job.prompt_ids) + job.completion_tokens)
        limits = await asyncio.to_thread(kept_limits, service.machine, service.config.threads)
        yield {"steps": await asyncio.to_thread(explain_steps, service, job, limits), "tokens": []}
        # Left early, it ends its request in the engine once nobody holds it: a thread may be inside now.
        tokens = explain_tokens(service, job)
        while (token := await asyncio.to_thread(next, tokens, None)) is not None:
            yield {"steps": [], "tokens": [token]}


async def explained_whole(desk: Desk, job: Job, visit: Visit) -> dict[str, Any]:
    """The parts joined."""
    whole: dict[str, Any] = {"steps": [], "tokens": []}
    async for part in explained(desk, job, visit):
        for name, rows in part.items():
            whole[name] += rows
    return whole
