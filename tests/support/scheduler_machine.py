"""Histories of an engine on the null backend: adds, aborts, steps in flight, drafts, failures, in any order.

The null backend holds each Step against its Capabilities and each context position against a fake KV cache;
``step_promises`` says what else must hold of a step. What a request must give is computed without an engine.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spola.core.errors import CapacityError, RequestError
from spola.core.runner import Capabilities
from spola.core.step import SliceOutput, StepOutput, decode_step, encode_step
from spola.engine.request import Status
from support.engine_rig import FULL, VOCAB, Rig, alone, expected, request, small_static, window
from support.step_promises import Promises

__all__ = ["GROUPS", "KINDS", "SEEN", "WINDOWS", "SchedulerMachine", "drive"]

SEEN: Counter[str] = Counter()

GROUPS = {
    "one": (FULL,),
    "two": (FULL, FULL),
    "window": (FULL, window(6)),
    "windows": (window(5), FULL, window(1)),
    "only window": (window(9),),
}

WINDOWS = {
    "narrow": (window(2), FULL, window(3)),
    "wide": (window(20), window(31)),
    "three windows": (window(2), window(7), window(20)),
}


MODES = (
    *({},) * 5,
    {"batching": "static"},
    {"batching": "dynamic", "batch_window_s": 0.0},
    {"batching": "dynamic", "batch_window_s": 3.5},
    {"reservation": "contiguous"},
    {"key_seats": 1},
    {"key_seats": 3},
)

KINDS = ("any", "static", "unmixed", "narrow", "chunks")


def capabilities(kind: str, size: int) -> Capabilities:
    any_shape = Capabilities(device="null", block_size=size, speculation=True)
    return {
        "any": any_shape,
        "static": small_static(chunk=8, block_size=size, max_total_context=70),
        "unmixed": Capabilities(device="null", block_size=size, mixed_batch=False, max_prefills=2),
        "narrow": Capabilities(
            device="null", block_size=size, max_step_tokens=9, max_total_context=50, batch_buckets=(1, 3)
        ),
        "chunks": Capabilities(device="null", block_size=size, prefill_chunk=4, speculation=True),
    }[kind]


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.flying = []
        self.wanted = {}
        self.live = {}
        self.failed = set()
        self.next_id = 0

    @initialize(
        groups=st.sampled_from(sorted({**GROUPS, **WINDOWS})),
        kind=st.sampled_from(["any", *KINDS]),
        size=st.integers(2, 4),
        blocks=st.integers(8, 40),
        window_blocks=st.integers(4, 16),
        seqs=st.integers(1, 6),
        rows=st.one_of(st.integers(8, 24), st.integers(40, 60)),
        chunk=st.one_of(st.none(), st.integers(1, 9)),
        watermark=st.sampled_from([0.0, 0.0, 0.2]),
        cache=st.sampled_from([True, True, False]),
        mode=st.sampled_from(MODES),
        ageing=st.sampled_from([2.0, 30.0]),
    )
    def build(
        self, groups, kind, size, blocks, window_blocks, seqs, rows, chunk, watermark, cache, mode, ageing
    ) -> None:
        self.rig = Rig(
            groups=(kinds := {**GROUPS, **WINDOWS}[groups]),
            capabilities=capabilities(kind, size),
            blocks=tuple(window_blocks if g.kind == "window" else blocks for g in kinds),
            seqs=seqs,
            rows=rows,
            chunk=chunk,
            watermark=watermark,
            prefix_cache=cache and "reservation" not in mode,
            ageing_s=ageing,
            max_len=60,
            **mode,
        )
        self.s = self.rig.scheduler
        self.promises = Promises(self.rig, SEEN)
        SEEN.update(f"mode {value}" for value in mode.values())
        SEEN[kind] += 1
        SEEN[groups] += 1

    # What is asked for

    @rule(
        n=st.integers(1, 40),
        max_tokens=st.one_of(st.none(), st.integers(1, 25)),
        seed=st.integers(0, 3),
        eos=st.sets(st.integers(0, VOCAB - 1), max_size=2),
        stops=st.sets(st.integers(0, VOCAB - 1), max_size=1),
        ignore=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1]),
        fork=st.integers(0, 40),
        salt=st.sampled_from([None, None, None, "", "x"]),
        key=st.sampled_from(["", "a", "b"]),
        patience=st.sampled_from([None, None, None, 0.0, 4.0, 12.0]),
    )
    def add_sample(
        self, n, max_tokens, seed, eos, stops, ignore, priority, fork, salt, key, patience
    ) -> None:
        r = request(
            self.next_id,
            text(n, fork, seed),
            max_tokens,
            seed=seed,
            eos_ids=eos,
            stop_token_ids=tuple(stops),
            ignore_eos=ignore,
            priority=priority,
            salt=salt,
            key=key,
            arrival_s=self.rig.now,
            deadline_s=None if patience is None else self.rig.now + patience,
        )
        self._add(r)

    @rule(
        n=st.integers(1, 30),
        head=st.integers(0, 10),
        want=st.sampled_from(["score", "logits", "embed_last", "embed_mean"]),
    )
    def add_other(self, n, head, want) -> None:
        self._add(request(self.next_id, text(n), want=want, head_from=head))

    @rule(n=st.integers(2, 5), length=st.integers(1, 30), tokens=st.integers(1, 20), salt=st.booleans())
    def add_choices(self, n, length, tokens, salt) -> None:
        """The choices of one request, which share the blocks of its prompt."""
        leader = self.next_id
        for choice in range(n):
            fields = {"choice": choice, "leader": leader, "salt": "x" if salt else None}
            fields["arrival_s"] = self.rig.now
            self._add(request(self.next_id, text(length), tokens, eos_ids=[3], **fields))

    @rule(n=st.integers(2, 8), seed=st.integers(0, 2**16), longest=st.integers(2, 30))
    def add_many(self, n, seed, longest) -> None:
        """Pressure: requests of any kind and length at once."""
        draw = Random(seed)
        for _ in range(n):
            fields = {"seed": draw.randrange(4), "priority": draw.choice((0, 0, 1, 2))}
            fields |= {"key": draw.choice("abc"), "arrival_s": self.rig.now}
            if draw.random() < 0.1:
                fields["deadline_s"] = self.rig.now + draw.randrange(30)
            if draw.random() < 0.3:
                fields |= {"want": draw.choice(("score", "logits", "embed_last", "embed_mean"))}
            tokens = draw.choice((None, 1, 5, 20))
            prompt = text(draw.randint(1, longest), draw.choice((0, 9, 99)), draw.randrange(3))
            self._add(request(self.next_id, prompt, tokens, eos_ids=[3], **fields))

    def _add(self, r) -> None:
        self.next_id += 1
        try:
            self.s.add(r)
        except (RequestError, CapacityError):
            room = self._room()
            goal = r.goal
            assert goal > room or goal + (r.want == "sample") > 60 or r.head_from >= goal, (
                "refused, but it fits"
            )
            SEEN["refused"] += 1
            return
        self.live[r.id] = r
        self.promises.salted |= r.salt is not None
        prompt = list(r.known)
        if r.want == "sample":
            self.wanted[r.id] = expected(r, prompt, min(60, self._room() + 1))
        else:
            self.wanted[r.id] = alone(r)

    def _room(self) -> int:
        room = self.s.kv.capacity()
        context = self.rig.runner.capabilities.max_total_context
        return min(x for x in (room, context, 10**6) if x is not None)

    @rule(pick=st.integers(0, 200))
    def abort(self, pick) -> None:
        if self.next_id:
            id = pick % (self.next_id + 1)
            SEEN["abort in flight"] += id in self.live and self.live[id].in_flight
            r = self.live.get(id)
            whole = r is not None and r.leader is not None and (id == r.leader or id in self.s.requests)
            self.s.abort(id)
            if whole:
                group = [one for one in self.live.values() if one.leader == r.leader]
                assert all(one.aborted or one.status is Status.FINISHED for one in group)
                SEEN["abort of choices"] += 1

    @rule(
        pick=st.integers(0, 200), good=st.integers(0, 4), bad=st.lists(st.integers(0, VOCAB - 1), max_size=3)
    )
    def guess(self, pick, good, bad) -> None:
        ready = [r for r in self.s.running if r.decoding and r.n_output and not r.in_flight]
        if ready:
            r = ready[pick % len(ready)]
            right = self.wanted[r.id].ids[r.n_output :][:good]
            r.drafts = [*right, *bad]

    # Steps

    @precondition(lambda self: len(self.flying) < 3)
    @rule()
    def schedule(self) -> None:
        before = self.promises.before()
        new = self.s.schedule(self.rig.now)
        self.rig.now += 1.0
        self.promises.check(new, before, bool(self.flying))
        if new is None:
            sleeps = self.s.wake_at is not None and self.s.wake_at > self.rig.now - 1.0
            SEEN["slept"] += sleeps
            assert self.flying or not self.s.requests or sleeps, "there is work but no step"
            return
        SEEN["flying"] += bool(self.flying)
        self.flying.append(new)

    @precondition(lambda self: not self.flying)
    @rule()
    def forget(self) -> None:
        self.s.cache.clear()

    @precondition(lambda self: self.flying)
    @rule(fault=st.sampled_from(["", "", "", "", "", "", "slice", "step"]), pick=st.integers(0, 10))
    def commit(self, fault, pick) -> None:
        step = self.flying.pop(0)
        ids = [piece.id for piece in step.slices]
        if fault == "step":
            # Before or after the backend took in what is new and gone: the engine cannot know. Steps that
            # are in flight behind it were planned as if it had.
            if pick % 2 or self.flying:
                self.rig.runner.execute(step)
            self.failed.update(ids)
            self.s.fail(step, "no power")
            self.rig.take(self.s.drain())
            SEEN["step failed"] += 1
            return
        out = self.rig.runner.execute(decode_step(encode_step(step)))
        if fault == "slice":
            bad = pick % len(ids)
            self.failed.add(ids[bad])
            slices = (*out.slices[:bad], SliceOutput(error="nan"), *out.slices[bad + 1 :])
            out = StepOutput(out.elapsed_s, slices)
        self.rig.take(self.s.commit(step, out))

    @rule(n=st.integers(1, 30))
    def run(self, n) -> None:
        for _ in range(n):
            self.schedule()
            while self.flying:
                self.commit("", 0)

    @invariant()
    def something_runs(self) -> None:
        if hasattr(self, "s"):
            assert all(r.status is not Status.FINISHED for r in self.s.requests.values())

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            return
        for _ in range(4000):
            if not self.s.has_work:
                break
            self.run(1)
        assert not self.s.has_work, "requests never finish"
        self.rig.take(self.s.drain())
        assert all(pool.used == 0 and pool.promised == 0 for pool in self.s.kv.pools)
        assert self.rig.results.keys() == self.live.keys()
        for id, result in self.rig.results.items():
            self._compare(id, result)
        assert sum(self.s.stats.finished.values()) == self.s.stats.added == len(self.live)
        self._add(request(self.next_id, 1, 1))
        self.run(6)
        assert self.rig.runner.held <= {self.next_id - 1}, "the backend holds requests that are gone"

    def _compare(self, id, result) -> None:
        (final,) = result.finals
        want, r = self.wanted[id], self.live[id]
        summary = final.summary
        assert 0 <= summary.n_cached < max(1, summary.n_prompt)
        SEEN[final.finish_reason] += 1
        SEEN[r.want] += 1
        assert summary.n_output == len(result.ids)
        assert final.finish_reason == "error" or id not in self.failed or r.aborted
        if final.finish_reason in ("abort", "error"):
            late = r.deadline_s is not None and "deadline" in (final.error or "")
            SEEN["deadline"] += late
            assert id in self.failed or final.finish_reason == "abort" or late, final.error
            if r.want == "sample":
                assert result.ids == want.ids[: len(result.ids)]
            return
        if r.want == "sample":
            assert (result.ids, final.finish_reason) == (want.ids, want.reason)
            assert summary.n_prompt == len(r.known) - len(want.ids)
            SEEN["preempted and right"] += summary.preemptions > 0
        else:
            assert (result.scores, result.logits, result.vector) == want


def text(n: int, fork: int = 99, kind: int = 0) -> list[int]:
    """Texts of all requests begin alike, as far as ``fork``."""
    return [(3 * i + i * i + (i >= fork) * (kind + 1)) % VOCAB for i in range(n)]


def drive(seed: int, **more) -> None:
    """One long history under pressure: small pools, many requests, steps in flight, faults.

    ``more`` replaces what is drawn for ``SchedulerMachine.build``.
    """
    draw = Random(seed)
    machine = SchedulerMachine()
    size = draw.randint(2, 4)
    drawn = {
        "groups": sorted(GROUPS)[seed // len(KINDS) % len(GROUPS)],
        "kind": KINDS[seed % len(KINDS)],
        "size": size,
        "blocks": draw.randint(8, 60 // size),
        "window_blocks": draw.randint(4, 12),
        "seqs": draw.randint(2, 8),
        "rows": draw.randint(8, 16),
        "chunk": draw.choice((None, 1, 3, 7)),
        "watermark": draw.choice((0.0, 0.1)),
        "cache": draw.random() < 0.8,
        "mode": MODES[seed % len(MODES)],
        "ageing": draw.choice((3.0, 30.0)),
    }
    machine.build(**drawn | more)
    pipelined, faulty = draw.random() < 0.5, draw.random() < 0.3
    for _ in range(120):
        if draw.random() < 0.12:
            machine.add_many(draw.randint(2, 5), draw.randrange(2**16), draw.choice((3, 12, 30)))
        if draw.random() < 0.05:
            machine.abort(draw.randrange(200))
        if draw.random() < 0.06:
            machine.add_choices(draw.randint(2, 4), draw.randint(1, 20), draw.randint(1, 20), False)
        if draw.random() < 0.4:
            bad = [draw.randrange(VOCAB) for _ in range(draw.randrange(3))]
            machine.guess(draw.randrange(200), draw.randrange(4), bad)
        machine.schedule()
        if machine.flying and draw.random() < 0.03:
            machine.abort(machine.flying[-1].slices[0].id)
        while len(machine.flying) > (draw.randint(0, 2) if pipelined else 0):
            fault = draw.choice(("slice", "step")) if faulty and draw.random() < 0.1 else ""
            machine.commit(fault, draw.randrange(10))
    machine.teardown()
