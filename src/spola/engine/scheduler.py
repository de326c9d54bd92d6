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

from spola.core.errors import CapacityError, ConfigError, RequestError
from spola.core.runner import Capabilities, KvGroup
from spola.core.step import Slice, SliceOutput, Step, StepOutput
from spola.engine.cost_model import StepBudget, work_of
from spola.engine.events import Event
from spola.engine.hits import PrefixCache
from spola.engine.invariants import check_scheduler
from spola.engine.kv import KvSpace
from spola.engine.limits import Limits, Shape
from spola.engine.outcome import apply
from spola.engine.plan import Plan
from spola.engine.request import Rank, Request, Status
from spola.engine.speculate import Speculator
from spola.engine.stats import Stats

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
        self.kv = KvSpace(groups, n_blocks, block_size=self.shape.block_size, max_slice=self.shape.chunk)
        self.cache = PrefixCache(
            self.kv,
            fixed_chunk=self.shape.fixed_chunk,
            identity=identity or {},
            enabled=limits.prefix_cache,
        )
        self.waiting: list[Request] = []  # both in rank order
        self.running: list[Request] = []
        self.requests: dict[int, Request] = {}  # waiting and running ones
        self.stats = Stats()
        self._spare = tuple(int(n * limits.watermark) for n in n_blocks)
        self._gone: list[int] = []
        self._events: list[Event] = []
        self._flying: dict[int, float] = {}  # index of a step that is not committed -> when it was planned
        self._index = 0
        self._arrivals = 0
        self._now = 0.0
        self._decodes_next = True  # where one step cannot hold both kinds
        self._speculator = speculator
        self._check = check

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
        request.limit = self._limit(request)
        request.rank = Rank(request.priority, request.tag, self._arrivals)
        self._arrivals += 1
        request.status = Status.WAITING
        self.requests[request.id] = request
        insort(self.waiting, request, key=_rank)
        self.stats.added += 1
        self._verify()

    def abort(self, id: int) -> None:
        """End a request; one in flight, when its step comes back. Ignores unknown and finished ids."""
        request = self.requests.get(id)
        if request is None:
            return
        if request.in_flight:
            request.aborted = True
        else:
            self._finish(request, Event(id, request.choice, finish_reason="abort"), self._now)
        self._verify()

    def schedule(self, now: float) -> Step | None:
        """The next step, or None if nothing can be computed before a step in flight is committed."""
        self._now = now
        waited_for = self.budget is not None and any(r.decoding for r in self.running)
        plan = Plan(self.shape, self.budget if waited_for else None)
        for decodes, prefills in self._phases():
            if decodes:
                self._plan_decodes(plan)
            if prefills:
                self._plan_prefills(plan)
                if not plan.preempted:
                    self._admit(plan, now)
            if plan.entries:
                break
        step = self._emit(plan, now) if plan.entries else None
        if self._check and step is None:
            assert self._flying or not self.requests, "there is work and nothing in flight, but no step"
        self._verify()
        return step

    def commit(self, step: Step, output: StepOutput) -> list[Event]:
        """Take the outcome of ``step`` in. Raises ValueError if it does not belong to a step in flight."""
        self._land_all(step, output)
        return self.drain()

    def fail(self, step: Step, message: str) -> None:
        """End every request of ``step``, which the backend could not execute, with ``message``."""
        # The backend may not have come to read what this step said was gone: say it again.
        self._gone.extend(step.gone)
        failed = tuple(SliceOutput(error=message) for _ in step.slices)
        self._land_all(step, StepOutput(elapsed_s=0.0, slices=failed))

    def drain(self) -> list[Event]:
        """Events since the last call of ``commit`` or ``drain``."""
        events, self._events = self._events, []
        return events

    # Planning

    def _phases(self) -> Iterator[tuple[bool, bool]]:
        """(decodes?, prefills?) to try in turn until one gives a plan."""
        if self.shape.mixed:
            yield True, True
        else:
            yield self._decodes_next, not self._decodes_next
            yield not self._decodes_next, self._decodes_next

    def _plan_decodes(self, plan: Plan) -> None:
        ready = [r for r in self.running if r.decoding and not r.in_flight]
        asking = self._asking() if ready else 0
        for left, request in zip(range(len(ready), 0, -1), ready, strict=True):
            if request.status is not Status.RUNNING or not plan.rows(request):
                continue
            drafts = self._drafts(request, plan, left, asking)
            # Speculation takes no block that this or a later decode may need: nobody is preempted for it.
            if drafts and not self.kv.extend(request, request.computed + 1 + drafts, spare=left - 1):
                drafts = 0
            if drafts or self._make_room(request, plan):
                plan.add(request, 1, drafts)

    def _drafts(self, request: Request, plan: Plan, left: int, asking: int) -> int:
        """How many drafts ``request`` gets; ``left`` decodes and ``asking`` other rows come first."""
        room = plan.draft_room(request, left + asking)
        if room and not request.drafts and self._speculator is not None and request.want == "sample":
            request.drafts = self._speculator.drafts(
                request,
                room=room,
                rows=plan.chosen + left + asking,
                tokens=len(plan.entries) + left - 1,
            )
        return min(len(request.drafts), room)

    def _asking(self) -> int:
        """Rows that prompts can use in this step, if it may hold them: drafts never take these."""
        if not self.shape.mixed:
            return 0
        prompts = [r for r in self.running if not r.in_flight and not r.decoding]
        if len(self.running) < self.shape.seqs:
            prompts += self.waiting
        most = self.shape.rows
        total = 0
        for request in prompts:
            total += min(request.missing, self.shape.chunk)
            if total >= most:
                return most
        return total

    def _plan_prefills(self, plan: Plan) -> None:
        for request in self.running:
            if request.in_flight or request.decoding:
                continue
            rows = plan.rows(request)
            if rows:
                self._extend_promised(request, rows)
                plan.add(request, rows)

    def _admit(self, plan: Plan, now: float) -> None:
        while self.waiting and len(self.running) < self.shape.seqs:
            if not self._admit_one(self.waiting[0], plan, now):
                return

    def _admit_one(self, request: Request, plan: Plan, now: float) -> bool:
        """Blocks and a slice for a waiting ``request``; False, and nothing done, if there is no room."""
        hit = self.cache.lookup(request)
        spare = self._spare if self.running else (0,) * len(self._spare)
        request.computed = hit.tokens
        rows = plan.rows(request)
        if (
            not rows
            or not self._context_left(request)
            or not self.kv.reserve(request, request.reach, spare=spare, hit=hit)
        ):
            request.computed = 0
            return False
        self.waiting.remove(request)
        request.status = Status.RUNNING
        insort(self.running, request, key=_rank)
        if request.scheduled_s is None:
            request.scheduled_s, request.n_cached = now, hit.tokens
        if self.cache.reads(request):
            self.stats.queried_tokens += request.goal
        self.stats.cached_tokens += hit.tokens
        self._extend_promised(request, rows)
        plan.add(request, rows)
        return True

    def _context_left(self, request: Request) -> bool:
        """Whether all running requests and this one could be in one step."""
        if self.shape.context is None or not self.running:
            return True
        return sum(r.reach for r in self.running) + request.reach <= self.shape.context

    def _extend_promised(self, request: Request, rows: int) -> None:
        if not self.kv.extend(request, request.computed + rows):
            raise AssertionError(f"request {request.id}: blocks promised at admission are not there")

    def _make_room(self, request: Request, plan: Plan) -> bool:
        """Blocks for one more row, at the cost of worse-ranked requests, at last of ``request`` itself."""
        while not self.kv.extend(request, request.computed + 1):
            victim = self._victim(request)
            if victim is None:
                return False
            self._preempt(victim)
            plan.preempted = True
            if victim is request:
                return False
        return True

    def _victim(self, request: Request) -> Request | None:
        """The worst-ranked request whose blocks nobody is writing; None: wait for a step in flight."""
        waits = False
        for victim in reversed(self.running):
            if victim is request:
                return None if waits else victim
            if not victim.in_flight:
                return victim
            waits = True
        raise AssertionError(f"request {request.id} needs blocks but does not run")

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.status = Status.WAITING
        request.computed = 0
        request.drafts = ()
        request.preemptions += 1
        self.stats.preemptions += 1
        insort(self.waiting, request, key=_rank)

    def _emit(self, plan: Plan, now: float) -> Step:
        slices = plan.slices()
        new = []
        for request, rows, _ in plan.entries:
            if not request.sent:
                new.append(request.state())
                request.sent = True
            if request.decoding:
                self.stats.decode_tokens += rows
            else:
                self.stats.prefill_tokens += rows
            self.stats.recomputed_tokens += max(0, min(rows, request.peak_computed - request.computed))
        gone, self._gone = tuple(self._gone), []
        copies, self.kv.copies = tuple(self.kv.copies), []
        step = Step(index=self._index, slices=slices, new=tuple(new), gone=gone, copies=copies)
        self._flying[step.index] = now
        self._index += 1
        self._decodes_next = not plan.decodes
        self.stats.steps += 1
        return step

    # Outcomes

    def _land_all(self, step: Step, output: StepOutput) -> None:
        if len(output.slices) != len(step.slices):
            raise ValueError(f"step {step.index}: {len(output.slices)} outputs for {len(step.slices)} slices")
        if step.index not in self._flying:
            raise ValueError(f"step {step.index} is not in flight")
        now = self._flying.pop(step.index) + output.elapsed_s
        if self.budget is not None:
            self.budget.model.observe(work_of(step), output.elapsed_s)
        if self._speculator is not None and all(s.n == 1 + s.n_drafts for s in step.slices):
            self._speculator.timed(step.n_rows, output.elapsed_s)
        for piece, out in zip(step.slices, output.slices, strict=True):
            self._land(self.requests[piece.id], piece, out, now)
        self._verify()

    def _land(self, request: Request, piece: Slice, out: SliceOutput, now: float) -> None:
        request.in_flight = False
        self.stats.decode_tokens += piece.n_drafts
        event = Event(request.id, request.choice)
        if request.aborted:
            event.finish_reason = "abort"
        elif out.error is not None:
            event.finish_reason, event.error = "error", out.error
        else:
            outcome = apply(request, piece, out)
            if outcome.reason != "error":
                self.cache.publish(request)
            event.finish_reason, event.error, event.stop_id = outcome.reason, outcome.error, outcome.stop_id
            if outcome.reason != "error":
                self._count_drafts(request, piece.n_drafts, out.accepted)
                event.scores, event.vector, event.logits = out.scores, out.vector, out.logits
                event.prompt_logprobs = out.prompt_logprobs
            if outcome.kept:
                event.ids = out.ids[: outcome.kept]
                event.logprobs = None if out.logprobs is None else out.logprobs[: outcome.kept]
                self.stats.output_tokens += outcome.kept
                request.got_tokens(now)
        if event.finish_reason is not None:
            self._finish(request, event, now)
        else:
            self.kv.trim(request, request.computed)
            if event.ids or event.scores or event.vector or event.logits or event.prompt_logprobs:
                self._events.append(event)

    def _count_drafts(self, request: Request, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        request.drafted += drafted
        request.accepted += accepted
        self.stats.draft_runs += 1
        self.stats.draft_tokens += drafted
        self.stats.accepted_tokens += accepted
        if self._speculator is not None:
            self._speculator.verified(request, drafted, accepted)

    def _finish(self, request: Request, event: Event, now: float) -> None:
        self._release(request)
        if self._speculator is not None:
            self._speculator.forget(request)
        reason = event.finish_reason
        assert reason is not None
        request.status, request.finish_reason = Status.FINISHED, reason
        del self.requests[request.id]
        self.stats.finished[reason] += 1
        event.summary = request.summary(now)
        self._events.append(event)

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

    # Limits

    def _limit(self, request: Request) -> int:
        """Tokens that ``request`` can know at most; raises if not even its prompt can be computed."""
        known, most = len(request.known), self.shape.max_len
        if known == 0:
            raise RequestError("the prompt is empty", param="prompt")
        if known + (request.want == "sample") > most:
            raise RequestError(
                f"the prompt has {known} tokens; prompt and output together can have {most}",
                param="prompt",
                code="context_length_exceeded",
            )
        if request.want in ("score", "logits") and not 0 <= request.head_from < request.goal:
            raise RequestError(
                f"nothing to {'score' if request.want == 'score' else 'compute'} from position "
                f"{request.head_from} of {known} tokens",
                param="prompt",
            )
        room = self.kv.capacity()
        if room is not None and request.goal > room:
            size = self.shape.block_size
            raise CapacityError(
                f"the prompt needs {request.goal} tokens of KV cache ({self.kv.blocks(request.goal)} blocks "
                f"of {size}); the whole cache holds {room} ({room // size} blocks): shorten the prompt or "
                "give the cache more memory"
            )
        if self.shape.context is not None:
            if request.goal > self.shape.context:
                raise CapacityError(
                    f"the prompt needs {request.goal} positions; this backend computes at most "
                    f"{self.shape.context} in one step: shorten the prompt"
                )
            room = self.shape.context if room is None else min(room, self.shape.context)
        if request.want != "sample":
            return known
        if request.params.max_tokens is not None:
            most = min(most, known + request.params.max_tokens)
        return most if room is None else min(most, room + 1)

    def _verify(self) -> None:
        if self._check:
            check_scheduler(self)
