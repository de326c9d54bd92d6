"""Visit: one HTTP request from its first byte to its last, and what it used. Lives on the event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from spola.core.errors import RequestError
from spola.runtime.answer import Job
from spola.server.accounts import Account

__all__ = ["Visit", "visit_of"]


class Visit:
    """Who asks, under which id; the Client of the desk. ``fields`` is what the log tells of it."""

    def __init__(self, request_id: str, account: Account) -> None:
        self.request_id = request_id
        self.account = account
        self.key = account.key.name
        self.weight = account.key.weight
        self.model: str | None = None
        self.started_s = time.monotonic()
        self.jobs: list[Job] = []

    def begin(self) -> None:
        """Part of ``desk.Client``: refuse what the key may not do now."""
        try:
            self.account.quota.begin()
        except RequestError:
            self.account.refused += 1
            raise
        self.account.requests += 1

    def end(self, jobs: Sequence[Job]) -> None:
        """Part of ``desk.Client``: book what was computed."""
        for job in jobs:
            self._book(job)

    def _book(self, job: Job) -> None:
        account, n_output = self.account, job.completion_tokens
        n_prompt = len(job.prompt_ids) if job.done or n_output else 0  # else it may never have begun
        account.quota.spend(n_prompt + n_output)
        account.prompt_tokens += n_prompt
        account.cached_tokens += job.cached_tokens
        account.output_tokens += n_output
        account.disconnects += not job.done
        self.jobs.append(job)

    def fields(self) -> dict[str, Any]:
        """What was asked of the model and how long its parts took, for the log; empty without any job."""
        out: dict[str, Any] = {"key": self.key or None, "model": self.model}
        if self.jobs:
            ends = [c.finish_reason or "disconnect" for job in self.jobs for c in job.choices]
            out["prompt_tokens"] = sum(len(job.prompt_ids) for job in self.jobs)
            out["cached_tokens"] = sum(job.cached_tokens for job in self.jobs)
            out["completion_tokens"] = sum(job.completion_tokens for job in self.jobs)
            out["finish"] = ",".join(dict.fromkeys(ends))
        summary = self.jobs[0].choices[0].summary if self.jobs else None
        if summary is not None:
            out["queue_ms"] = _ms(summary.queue_s)
            out["ttft_ms"] = _ms(summary.ttft_s)
            out["preemptions"] = summary.preemptions or None
        return out


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def visit_of(request: Request) -> Visit:
    """The visit that ``server.shield`` made of ``request``."""
    visit: Visit = request.scope["state"]["visit"]
    return visit
