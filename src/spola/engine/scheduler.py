"""Scheduler: which rows of which requests the next step computes, and what a step's outcome leads to.

``schedule`` may be called again before ``commit``: a request in flight is left out until its step comes
back. No clock, no backend: time comes in as ``now``, a step's length with its output.

Order of a step: requests one row short of their known tokens, best rank first; then prompts being
computed; then admission. Only the first kind can run out of blocks, as admission promises all that a
prompt needs; then the worst-ranked request gives its blocks back and is computed again later. Best rank
is never preempted while another runs, so it gains a token in every step it can be in: no deadlock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from spola.core.errors import ConfigError
from spola.core.runner import Capabilities, KvGroup
from spola.core.step import SliceOutput, Step, StepOutput
from spola.engine.cost_model import StepBudget
from spola.engine.deadlines import Deadlines, expired
from spola.engine.decodes import Decodes
from spola.engine.entry import token_limit
from spola.engine.events import Event
from spola.engine.fair import Company, Order
from spola.engine.hits import PrefixCache
from spola.engine.invariants import check_scheduler
from spola.engine.kv import KvSpace
from spola.engine.landing import Landing
from spola.engine.limits import Limits, Shape
from spola.engine.plan import Plan
from spola.engine.prompts import Prompts
from spola.engine.request import Rank, Request, Status
from spola.engine.speculate import Speculator
from spola.engine.stats import Stats
from spola.engine.way import victims_for

__all__ = ["Scheduler"]


def _rank(request: Request) -> Rank:
    return request.rank


class Scheduler:
    """Owns the requests, their order and their blocks.

    ``n_blocks[g]`` blocks of ``capabilities.block_size`` tokens exist for ``groups[g]``. ``budget`` bounds
    the prompt rows of steps while a request waits for its next token, and learns from every step; None: only
    ``limits`` do. ``identity`` is what K and V depend on beside the text (weights, KV types). ``check``
    verifies every invariant after every call and raises AssertionError: slow, for tests and SPOLA_CHECK.
    """

    def __init__(
        self,
        limits: Limits,
        capabilities: Capabilities,
        groups: Sequence[KvGroup],
        n_blocks: Sequence[int],
        *,
        budget: StepBudget | None = None,
        speculator: Speculator | None = None,
        identity: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> None:
        self.shape = Shape.of(limits, capabilities)
        self.budget = budget
        if (
            budget is not None
            and self.shape.fixed_chunk is not None
            and budget.floor < self.shape.fixed_chunk
        ):
            raise ConfigError(
                f"a step budget of at least {budget.floor} rows never has a chunk of {self.shape.fixed_chunk}"
            )
        self.kv = KvSpace(
            groups,
            n_blocks,
            block_size=self.shape.block_size,
            max_slice=self.shape.chunk,
            max_rows=self.shape.rows if self.shape.fixed_chunk is None else None,
        )
        self.cache = PrefixCache(
            self.kv,
            fixed_chunk=self.shape.fixed_chunk,
            identity=identity or {},
            enabled=limits.prefix_cache,
        )
        self.wake_at: float | None = None  # nothing to compute before, though there is work
        self.waiting: list[Request] = []  # both in rank order
        self.running: list[Request] = []
        self.requests: dict[int, Request] = {}  # waiting and running ones
        self.stats = Stats()
        self._order = Order(limits.ageing_s)
        self._batching = limits.batching
        self._choices: dict[int, set[int]] = {}  # id of choice 0 -> ids of the choices that are not finished
        self._deadlines = Deadlines()
        self._spare = self.kv.spare(limits.watermark, self.shape.seqs)
        self._prompts = Prompts(
            limits,
            self.shape,
            self.kv,
            self.cache,
            self._order,
            self.stats,
            waiting=self.waiting,
            running=self.running,
            requests=self.requests,
            spare=self._spare,
        )
        self._decodes = Decodes(
            limits,
            self.shape,
            self.kv,
            speculator,
            waiting=self.waiting,
            running=self.running,
            preempt=self._preempt,
        )
        self._company = Company()
        self._gone: list[int] = []
        self._landing = Landing(
            self.kv,
            self.cache,
            self.stats,
            requests=self.requests,
            finish=self._finish,
            verified=self._decodes.verified,
        )
        self._flying: dict[int, float] = {}  # index of a step that is not committed -> when it was planned
        self._index = 0
        self._now = 0.0
        self._landed_s = 0.0
        self._decodes_next = True  # where one step cannot hold both kinds
        self._check = check

    @property
    def speculator(self) -> Speculator | None:
        """Who guesses tokens; may be exchanged between steps."""
        return self._decodes.speculator

    @speculator.setter
    def speculator(self, speculator: Speculator | None) -> None:
        self._decodes.speculator = speculator

    @property
    def has_work(self) -> bool:
        """Whether ``schedule`` has something to plan, now or after the steps in flight."""
        return bool(self.requests)

    def add(self, request: Request) -> None:
        """Queue ``request``.

        Raises RequestError if it is malformed or too long for the model, CapacityError, with the numbers,
        if it could never run; ValueError if its id is in use.
        """
        if request.status is not Status.NEW or request.id in self.requests:
            raise ValueError(f"request {request.id} was added before")
        request.limit = token_limit(request, self.shape, self.kv)
        self._join(request)
        self._order.arrive(request)
        request.status = Status.WAITING
        self.requests[request.id] = request
        insort(self.waiting, request, key=_rank)
        self.stats.added += 1
        self._company.came(request.key)
        self._verify()

    def abort(self, id: int) -> None:
        """End a request, with all its choices; what is in flight, when its step comes back.

        Ignores unknown and finished ids, except that of a choice 0 whose other choices go on.
        """
        asked = self.requests.get(id)
        leader = id if asked is None or asked.leader is None else asked.leader
        for one in sorted(self._choices.get(leader, () if asked is None else (id,))):
            request = self.requests[one]
            if request.in_flight:
                request.aborted = True
            else:
                self._finish(request, Event(one, request.choice, finish_reason="abort"), self._now)
        self._verify()

    def drafting(self) -> list[tuple[Request, int]]:
        """Requests, best rank first, whose next tokens a draft model may guess before ``schedule``.

        With each the number of drafts that pays; those for which it is 0 are left out.
        """
        return self._decodes.drafting()

    def schedule(self, now: float) -> Step | None:
        """The next step, or None if nothing can be computed before a step in flight is committed."""
        self._now = now
        if self._deadlines.next <= now:
            self._expire(now)
        slices = self._decodes.steady()
        if slices is not None:
            self.stats.decode_tokens += len(slices)
            self._decodes_next = False
            self.wake_at = None
            step: Step | None = self._send(Step(index=self._index, slices=slices, gone=self._going()), now)
        else:
            step = self._planned(now)
            self.wake_at = self._sleep_until(now) if step is None else None
        self._verify()
        return step

    def _planned(self, now: float) -> Step | None:
        if self._order.age(self.waiting, self.requests.values(), now):
            self.waiting.sort(key=_rank)
        shared = self._company.several(now)
        waited_for = self.budget is not None and (shared or any(r.decoding for r in self.running))
        plan = Plan(self.shape, self.budget if waited_for else None, short=shared)
        if self._flying and (rows := self.kv.prompt_rows()) is not None:
            plan.hold(rows)
        self._make_way(plan)
        for decodes, prefills in self._phases():
            if decodes:
                self._decodes.fill(plan)
            if prefills:
                self._prompts.fill(plan, now, shared=shared)
            if plan.entries:
                break
        return self._emit(plan, now) if plan.entries else None

    def _sleep_until(self, now: float) -> float | None:
        """When an idle engine has something to compute: a batch to begin, or a deadline."""
        if self._flying or not self.requests:
            return None
        due = self._prompts.due(now)
        idle = due > now and not self.running
        assert idle, "there is work and nothing in flight, but no step"
        return min(due, self._deadlines.next)

    def _expire(self, now: float) -> None:
        """End the requests whose deadline has passed."""
        for request in self._deadlines.passed(now, self.requests):
            if request.in_flight:
                request.expired = True
            else:
                self._finish(request, expired(request), now)

    def _join(self, request: Request) -> None:
        """Note the other choices and the deadline of a new request."""
        leader = request.leader
        if leader is not None and leader != request.id:
            first = self.requests.get(leader)
            prompt = request.known[: request.n_prompt]
            if first is not None and (
                first.known[: first.n_prompt] != prompt
                or (first.adapter, first.salt, first.want) != (request.adapter, request.salt, request.want)
            ):
                raise ValueError(f"request {request.id} is no choice of request {leader}")
        if leader is not None:
            self._choices.setdefault(leader, set()).add(request.id)
        self._deadlines.note(request)

    def commit(self, step: Step, output: StepOutput) -> list[Event]:
        """Take the outcome of ``step`` in. Raises ValueError if it does not belong to a step in flight."""
        self._land_all(step, output)
        return self.drain()

    def fail(self, step: Step, message: str) -> None:
        """End every request of ``step``, which the backend could not execute, with ``message``."""
        # The backend may not have come to read what this step said was gone: say it again, but not of those
        # that a later step has sent anew.
        live = self.requests
        self._gone.extend(id for id in step.gone if id not in live or not live[id].sent)
        failed = tuple(SliceOutput(error=message) for _ in step.slices)
        self._land_all(step, StepOutput(elapsed_s=0.0, slices=failed))

    def drain(self) -> list[Event]:
        """Events since the last call of ``commit`` or ``drain``."""
        events, self._landing.events = self._landing.events, []
        return events

    # Planning

    def _phases(self) -> Iterator[tuple[bool, bool]]:
        """(decodes?, prefills?) to try in turn until one gives a plan."""
        if self.shape.mixed:
            yield True, True
        else:
            yield self._decodes_next, not self._decodes_next
            yield not self._decodes_next, self._decodes_next

    def _make_way(self, plan: Plan) -> None:
        """Preempt worse classes for the first waiting request that may begin, if it can begin then."""
        if self._batching != "continuous" or not self.waiting or not self.running:
            return
        head = self._prompts.ahead(self.running[-1].rank.priority)
        if head is None:
            return
        plan.head = head
        victims = victims_for(
            head,
            self.running,
            self.kv,
            seats=self.shape.seqs,
            spare=self._spare,
            reach=self._prompts.reach(head),
            context=self.shape.context,
        )
        for victim in victims:
            self._preempt(victim)
            plan.victims.add(victim.id)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.status = Status.WAITING
        request.computed = 0
        request.drafts, request.proposals = (), 0
        request.preemptions += 1
        request.waiting_since = self._now
        self.stats.preemptions += 1
        insort(self.waiting, request, key=_rank)

    def _emit(self, plan: Plan, now: float) -> Step:
        slices = plan.slices()
        new = []
        decoded = 0
        for request, rows, _ in plan.entries:
            if not request.sent:
                new.append(request.state())
                request.sent = True
            if request.decoding:
                decoded += rows
            else:
                self.stats.prefill_tokens += rows
            again = request.peak_computed - request.computed
            if again > 0:
                self.stats.recomputed_tokens += min(rows, again)
        self.stats.decode_tokens += decoded
        copies, self.kv.copies = tuple(self.kv.copies), []
        self._decodes_next = not plan.decodes
        return self._send(Step(self._index, slices, tuple(new), self._going(), copies), now)

    def _going(self) -> tuple[int, ...]:
        gone, self._gone = tuple(self._gone), []
        return gone

    def _send(self, step: Step, now: float) -> Step:
        self._flying[step.index] = now
        self._index += 1
        self.stats.steps += 1
        return step

    # Outcomes

    def _land_all(self, step: Step, output: StepOutput) -> None:
        if len(output.slices) != len(step.slices):
            raise ValueError(f"step {step.index}: {len(output.slices)} outputs for {len(step.slices)} slices")
        if step.index not in self._flying:
            raise ValueError(f"step {step.index} is not in flight")
        # A backend that only states its times (null) may state longer steps than the clock saw.
        now = self._landed_s = max(self._landed_s, self._flying.pop(step.index) + output.elapsed_s)
        if self.budget is not None:
            self.budget.saw(step, output.elapsed_s)
        if self.speculator is not None and all(s.n == 1 + s.n_drafts for s in step.slices):
            self.speculator.timed(step.n_rows, output.elapsed_s)
        self._landing.land(step, output, now)
        self._verify()

    def _finish(self, request: Request, event: Event, now: float) -> None:
        self._release(request)
        if self.speculator is not None:
            self.speculator.forget(request)
        reason = event.finish_reason
        assert reason is not None
        request.status, request.finish_reason = Status.FINISHED, reason
        del self.requests[request.id]
        if request.leader is not None:
            choices = self._choices[request.leader]
            choices.discard(request.id)
            if not choices:
                del self._choices[request.leader]
        self.stats.finished[reason] += 1
        self._company.left(request.key, now)
        event.summary = request.summary(now)
        self._landing.events.append(event)

    def _release(self, request: Request) -> None:
        """Take ``request`` out of its queue, its blocks from it, and it from the backend. Idempotent."""
        self.kv.release(request)
        if request.sent:
            self._gone.append(request.id)
            request.sent = False
        for queue in (self.waiting, self.running):
            at = bisect_left(queue, request.rank, key=_rank)
            if at < len(queue) and queue[at] is request:
                del queue[at]

    def _verify(self) -> None:
        if self._check:
            check_scheduler(self)
