"""Any sequence of adds, aborts, steps in flight, drafts and failures keeps every promise of the engine.

The real scheduler and pools run on the null backend, which holds each Step against its Capabilities and
each context position against a fake KV cache. What a request must give is computed without an engine.
"""

import os
from array import array
from collections import Counter
from random import Random
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spola.backends.null import _ROOT, NullRunner, _link
from spola.core.errors import CapacityError, RequestError
from spola.core.runner import Capabilities, RunnerConfig
from spola.core.step import Slice, SliceOutput, Step, StepOutput, decode_step, encode_step, pack_ids
from spola.engine.admission import MAX_PASSED
from spola.engine.request import Status
from support.engine_rig import FULL, VOCAB, Rig, expected, next_token, request, small_static, window

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

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


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
        self.salted = False
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
        self.salted = self.salted or r.salt is not None
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
        before = list(self.s.running)
        ready = [r for r in before if r.decoding and not r.in_flight]
        best = before[0] if before else None
        hashed = [{b for b, key in enumerate(pool.hashes) if key} for pool in self.s.kv.pools]
        held = self.s.kv.prompt_rows()
        new = self.s.schedule(self.rig.now)
        self.rig.now += 1.0
        planned = [self.s.requests[piece.id] for piece in new.slices] if new else []
        assert [r.rank for r in planned] == sorted(r.rank for r in planned)
        victims = [r for r in before if r.status is Status.WAITING]
        newcomers = [r for r in planned if r not in before]
        if victims:
            assert not set(victims) & set(planned)
            assert all(min(v.rank for v in victims) > r.rank for r in planned)
            highest = min(v.rank.priority for v in victims)
            assert all(r.rank.priority < highest for r in newcomers), "admitted in a step that preempted"
            assert best not in victims or len(before) == 1 or newcomers, "the best rank was preempted"
            SEEN["gave way to a class"] += bool(newcomers)
        assert all(r.passed <= MAX_PASSED for r in self.s.waiting)
        most = self.s._prompts._key_seats
        if most is not None:
            seated = Counter(r.key for r in self.s.running)
            assert max(seated.values(), default=0) <= most
            SEEN["key held back"] += any(seated[r.key] == most for r in self.s.waiting)
        SEEN["passed"] += any(r.passed for r in self.s.waiting)
        SEEN["aged"] += any(r.rank.priority < r.priority for r in self.s.waiting)
        if self.s._batching != "continuous" and newcomers:
            assert all(r.first_token_s is None or r.preemptions for r in newcomers)
            SEEN["batch begun"] += not before
        if self.s.shape.mixed and self.s.shape.context is None and not self.flying:
            ended = Status.FINISHED
            left_out = [r for r in ready if r not in planned + victims and r.status is not ended]
            assert not left_out, f"decodes left out: {left_out}"
        if new is not None:
            self._check_halves(new, before)
        self._check_sharing(planned, before, hashed)
        SEEN["preempted"] += len(victims)
        SEEN["copied"] += new is not None and len(new.copies)
        SEEN["mixed"] += new is not None and len({piece.n == 1 for piece in new.slices}) == 2
        SEEN["drafts"] += new is not None and any(piece.n_drafts for piece in new.slices)
        SEEN["window freed"] += any(table.first for r in planned for table in r.tables)
        SEEN["lent to several"] += sum(any(table.lent for table in r.tables) for r in planned) > 1
        SEEN["held to what is not lent"] += held is not None and held < self.s.shape.rows
        if new is None:
            sleeps = self.s.wake_at is not None and self.s.wake_at > self.rig.now - 1.0
            SEEN["slept"] += sleeps
            assert self.flying or not self.s.requests or sleeps, "there is work but no step"
            return
        SEEN["flying"] += bool(self.flying)
        self.flying.append(new)

    def _check_halves(self, step, before) -> None:
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
                SEEN["halves"] += 1

    def _check_sharing(self, planned, before, hashed) -> None:
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
            if r not in before and r.computed:
                SEEN["hit"] += 1
                SEEN["hit again"] += r.preemptions > 0
                SEEN["hit inside a block"] += r.computed % size > 0
                SEEN["all but one"] += r.decoding
                SEEN["generated found"] += r.computed > r.n_prompt
                assert r.want == "sample"
                SEEN["choice shares"] += r.leader is not None and r.computed == r.n_prompt - 1
                assert self.s.cache.enabled or r.leader is not None
        full = len(self.s.kv.groups) == 1 and self.s.kv.groups[0].kind == "full"
        if (
            full
            and len(planned) == 1
            and planned[0].leader is None
            and planned[0] not in before
            and self.s.cache.enabled
        ):
            self._check_hit(planned[0], hashed[0])

    def _check_hit(self, r, hashed) -> None:
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
        SEEN["hit compared"] += 1
        assert r.computed == best or (self.salted and r.computed < best)

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


def chain(ids) -> list[int]:
    """What the null backend keeps for each position of ``ids``."""
    out = [_ROOT]
    for token in ids:
        out.append(_link(out[-1], token))
    return out[1:]


def shared(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def alone(r) -> tuple[list[float], bytes, bytes | None]:
    """What a request that samples nothing gives when a runner computes it in one slice."""
    runner = NullRunner(script=next_token)
    config = RunnerConfig(kv_groups=(FULL,), kv_blocks=(4,), max_step_tokens=64, max_seqs=1, max_model_len=64)
    runner.load(SimpleNamespace(vocab=VOCAB, hidden=6), (), config)
    whole = one_slice(r)
    out = runner.execute(whole).slices[0]
    return list(out.scores or ()), out.logits or b"", out.vector


def one_slice(r):
    n = r.goal
    heads = n - r.head_from if r.want in ("score", "logits") else 0
    targets = pack_ids(r.known[r.head_from + 1 :]) if r.want == "score" else b""
    piece = Slice(r.id, 0, pack_ids(r.known[:n]), (pack_ids(range(-(-n // 32))),), heads, 0, targets)
    return Step(0, (piece,), (r.state(),))


def test_every_promise_holds_over_random_histories():
    quick = {} if SOAK else {"max_examples": 50}
    run_state_machine_as_test(SchedulerMachine, settings=settings(stateful_step_count=30, **quick))


EVERYTHING = (
    *GROUPS,
    *KINDS,
    *("stop", "length", "abort", "error", "sample", "score", "logits", "embed_last", "embed_mean"),
    *("refused", "preempted", "preempted and right", "mixed", "drafts", "flying", "abort in flight"),
    *("window freed", "step failed", "copied"),
    *("mode static", "mode dynamic", "mode contiguous", "batch begun", "slept", "deadline"),
    *(
        "key held back",
        "halves",
        "passed",
        "aged",
        "gave way to a class",
        "choice shares",
        "abort of choices",
    ),
    *("hit", "hit again", "hit inside a block", "all but one", "generated found", "hit compared"),
)


def never() -> list[str]:
    """What did not happen often enough for a test to mean something."""
    return [what for what in EVERYTHING if SEEN[what] < 3]


# 1064: blocks found for a new request were taken by a running one before it began.
# 6195: a choice copied from the first one, which came back in the same step and was itself to get a copy.
ONCE_WRONG = (1064, 6195)


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


def test_every_promise_holds_under_pressure():
    SEEN.clear()
    for seed in (*range(2_500 if SOAK else 33), *ONCE_WRONG):
        try:
            drive(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert not never()


def test_every_promise_holds_where_windows_share_a_step():
    """Narrow and wide windows, several groups; steps of a few rows and of many, several of them in flight."""
    SEEN.clear()
    kinds = sorted(WINDOWS)
    for seed in range(600 if SOAK else 18):
        rows, chunk = ((8, None), (24, None), (60, None), (60, 20))[seed % 4]
        more = {"groups": kinds[seed % len(kinds)], "rows": rows, "chunk": chunk, "size": 2 + seed % 3}
        more |= {"kind": ("any", "any", "unmixed", "narrow", "chunks")[seed % 5]}
        more |= {"blocks": 40, "window_blocks": (12, 20, 40)[seed // 3 % 3]}
        try:
            drive(5_000 + seed, **more)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = ("lent to several", "held to what is not lent", "window freed", "flying", "preempted", "drafts")
    assert all(SEEN[what] >= 3 for what in wanted), {what: SEEN[what] for what in wanted}
