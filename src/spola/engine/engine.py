"""Engine: the one caller of a Runner. Plans a step, adds the masks, executes, commits.

Synchronous and single-threaded; it reads no clock and starts nothing. A request's fault ends that request;
a step that the Runner could not execute ends the requests that were in it, and the engine stays usable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from spola.core.errors import RequestError
from spola.core.runner import Runner
from spola.core.step import Step, StepOutput
from spola.engine.drafter import Drafter
from spola.engine.events import Event
from spola.engine.guarded import guarded
from spola.engine.report import Observer, StepReport
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler

__all__ = ["Engine", "Recorder"]

Recorder = Callable[[Step, StepOutput], None]


class Engine:
    """A loaded ``runner`` and a ``scheduler`` made for its Capabilities and KV blocks.

    ``vocab`` is the number of token ids. ``record`` is given every Step as executed with its StepOutput, for
    tests and replays; it is not given a step that the runner raised on. ``observers`` are told of every step
    and of the events without one. ``drafter`` guesses before each step what it then verifies; the
    scheduler's Speculator must have it as its proposer.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        vocab: int,
        record: Recorder | None = None,
        observers: Sequence[Observer] = (),
        drafter: Drafter | None = None,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.vocab = vocab
        self.observers = list(observers)
        self.drafter = drafter
        self._record = record

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def wake_at(self) -> float | None:
        """When there is something to compute again, if the last ``step`` found nothing but work to come."""
        return self.scheduler.wake_at

    def add(self, request: Request) -> None:
        """Queue ``request``; raises as ``Scheduler.add``, and RequestError for ids outside the vocabulary."""
        self._check_ids("prompt", (min(request.known), max(request.known)) if request.known else ())
        self._check_ids("stop_token_ids", request.params.stop_token_ids)
        self._check_ids("allowed_token_ids", tuple(request.params.allowed_token_ids or ()))
        self._check_ids("logit_bias", tuple(request.params.logit_bias or ()))
        self.scheduler.add(request)

    def abort(self, id: int) -> None:
        """End a request with the reason "abort", told by the next ``step``. Idempotent."""
        self.scheduler.abort(id)

    def step(self, now: float, meanwhile: Callable[[], None] = lambda: None) -> list[Event]:
        """Compute one step, if there is one, and tell what came of it.

        ``meanwhile`` is called in any case, before the runner is: what it wakes other threads for they can do
        while the runner computes.

        If the runner raises, every request in the step ends with an "error" event; the backend must then
        still be able to run other requests, or raise again. The same for an interrupt, which is passed on.
        """
        if self.drafter is not None:
            meanwhile()
            now += self.drafter.draft(self.scheduler.drafting())
        step = self.scheduler.schedule(now)
        if self.drafter is None:
            meanwhile()
        if step is None:
            return self._tell(None, now, 0.0, self.scheduler.drain())
        step, faults = guarded(step, self.scheduler.requests, self.vocab)
        try:
            if self.drafter is not None:
                self.drafter.hand_over(step, self.runner)
            output = self.runner.execute(step)
            if len(output.slices) != len(step.slices):
                raise ValueError(f"{len(output.slices)} outputs for {len(step.slices)} slices")
        except BaseException as error:
            self.scheduler.fail(step, f"the backend failed: {type(error).__name__}: {error}")
            if isinstance(error, Exception):
                return self._tell(None, now, 0.0, self.scheduler.drain())
            raise  # an interrupt: the next call of step tells the events
        if self._record is not None:
            self._record(step, output)
        if faults:
            outs = tuple(faults.get(s.id, out) for s, out in zip(step.slices, output.slices, strict=True))
            output = msgspec.structs.replace(output, slices=outs)
        return self._tell(step, now, output.elapsed_s, self.scheduler.commit(step, output))

    def close(self) -> None:
        """Free the runner and end the observers. Idempotent."""
        for observer in self.observers:
            observer.close()
        if self.drafter is not None:
            self.drafter.close()
        self.runner.close()

    def _tell(self, step: Step | None, now: float, elapsed_s: float, events: list[Event]) -> list[Event]:
        """Report to the observers; gives ``events`` back."""
        if not self.observers or (step is None and not events):
            return events
        scheduler = self.scheduler
        arrivals = {}
        if step is not None and step.new:
            ended = {event.id: event.summary for event in events if event.summary is not None}
            for state in step.new:
                of = scheduler.requests.get(state.id) or ended.get(state.id)
                if of is not None:
                    arrivals[state.id] = of.arrival_s
        pools = scheduler.kv.pools
        report = StepReport(
            start_s=now,
            elapsed_s=elapsed_s,
            step=step,
            events=events,
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            kv_used=tuple([pool.n_blocks - pool.free for pool in pools]),
            kv_blocks=tuple([pool.n_blocks for pool in pools]),
            kv_shared=tuple([pool.shared for pool in pools]),
            kv_cached=tuple([pool.cached for pool in pools]),
            arrivals=arrivals,
        )
        for observer in self.observers:
            observer.step(report)
        return events

    def _check_ids(self, name: str, ids: tuple[int, ...]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab:
                raise RequestError(
                    f"{name}: token {token} is not in the vocabulary of {self.vocab} ids", param=name
                )
