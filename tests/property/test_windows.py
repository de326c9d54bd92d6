"""Window groups promise each request its window and all together one step's rows: that is always enough.

Whatever the windows, slices and divisions of a step: what was promised at admission is there when it is
needed, while others take every block that is not promised; and a cache as large as the plan says takes all
requests it was planned for, at their full length, without a preemption.
"""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest

from spola.core.runner import Capabilities
from spola.engine.kv import KvSpace, Room
from spola.engine.windows import WindowBound
from spola.runtime.fit import Layout
from support.engine_rig import FULL, Rig, expected, request, window

SEEN: Counter[str] = Counter()


def owner():
    return SimpleNamespace(tables=(), at=0, goal=0, end=0)


def touched(first: int, end: int, size: int) -> int:
    return -(-end // size) - first // size if end > first else 0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_bound_is_that_of_every_alignment(size):
    for w in range(1, 20):
        for rows in range(1, 20):
            bound = WindowBound.of(w, block_size=size, max_slice=rows, max_rows=rows)
            starts = range(w, w + size)
            by_rows = {r: max(touched(c - w, c + r, size) for c in starts) for r in range(1, rows + 1)}
            assert max(by_rows.values()) == bound.alone == bound.together(1)
            for r, most in by_rows.items():
                assert most <= bound.each + (r - 1) // size
            # A block of rows fits into what each has, and no smaller number of blocks does for a row.
            assert by_rows[min(size, rows)] <= bound.each <= by_rows[1] + 1
            assert bound.together(7) <= 7 * bound.alone


def divided(draw: Random, rows: int, parts: int) -> list[int]:
    """``rows`` or less, in ``parts``; sometimes all for one, sometimes one for each."""
    kind = draw.randrange(4)
    if kind == 0:
        return [rows, *(0 for _ in range(parts - 1))]
    if kind == 1:
        return [min(1, max(0, rows - i)) for i in range(parts)]
    cuts = sorted(draw.randint(0, rows) for _ in range(parts))
    return [b - a for a, b in zip([0, *cuts], cuts, strict=False)]


def drive(seed: int) -> None:
    """Prompts in the smallest pools that admit them, while a thief takes all that is not promised."""
    draw = Random(seed)
    size, n = draw.choice((1, 2, 3, 4, 8)), draw.randint(1, 6)
    groups = tuple(window(draw.choice((1, 2, 3, 5, 8, 17, 40))) for _ in range(draw.randint(1, 3)))
    rows = draw.choice((n, n + draw.randint(0, 9), draw.randint(n, 60)))
    chunk = draw.choice((rows, rows, draw.randint(1, rows)))
    bounds = [WindowBound.of(g.window, block_size=size, max_slice=chunk, max_rows=rows) for g in groups]
    owners = [owner() for _ in range(n)]
    for one in owners:
        one.goal = draw.choice((draw.randint(1, 30), draw.randint(100, 160)))
    # Each group has just what the promises come to, so that one block less would not admit the last.
    kv = KvSpace(groups, [10**4] * len(groups), block_size=size, max_slice=chunk, max_rows=rows)
    spare = (0,) * len(groups)
    probes = [owner() for _ in owners]
    for probe, one in zip(probes, owners, strict=True):
        assert kv.reserve(probe, one.goal, spare=spare)
    counts = [10**4 - pool.available for pool in kv.pools]
    for count, bound in zip(counts, bounds, strict=True):
        assert count <= bound.together(n)
        SEEN["planned"] += count == bound.together(n)
        SEEN["less than each alone"] += count < n * bound.alone
    kv = KvSpace(groups, counts, block_size=size, max_slice=chunk, max_rows=rows)
    assert all(kv.reserve(one, one.goal, spare=spare) for one in owners)
    thief = owner()
    assert kv.reserve(thief, 0, spare=spare)
    flying: list[list[SimpleNamespace]] = []
    several = draw.random() < 0.5
    while any(one.at < one.goal for one in owners):
        free = [one for one in owners if one.end == one.at < one.goal]
        draw.shuffle(free)
        most = kv.prompt_rows() if flying else None
        SEEN["held to rows"] += most is not None and most < rows
        step = []
        for one, part in zip(free, divided(draw, rows if most is None else min(rows, most), n), strict=False):
            part = min(part, chunk, one.goal - one.at)
            if part:
                assert kv.extend(one, one.at + part, lend=True), "what was promised is not there"
                one.end = one.at + part
                step.append(one)
        SEEN["lent to several"] += sum(any(t.lent for t in one.tables) for one in step) > 1
        while kv.extend(thief, (len(thief.tables[0].ids) + 1) * size):
            SEEN["stolen"] += 1
        kv.check([*owners, thief])
        if step:
            flying.append(step)
        while flying and (not several or not step or len(flying) > draw.randint(0, 2)):
            for one in flying.pop(draw.randrange(len(flying))):
                one.at = one.end
                kv.trim(one, one.at)
            kv.check([*owners, thief])
    for one in [*owners, thief]:
        kv.release(one)
    assert all(pool.used == pool.promised == pool.loose == pool.lent == 0 for pool in kv.pools)


def test_what_is_promised_is_there_however_steps_are_divided():
    SEEN.clear()
    for seed in range(400):
        try:
            drive(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    for what in ("planned", "less than each alone", "held to rows", "lent to several", "stolen"):
        assert SEEN[what] > 10, f"{what}: {SEEN[what]}"


def test_who_gives_way_is_known_before_anybody_does():
    """``Room`` says of some requests what is there once their blocks are released."""
    for seed in range(150):
        draw = Random(seed)
        size, rows = draw.choice((1, 2, 4)), draw.choice((2, 9, 30))
        groups = draw.choice(((window(5),), (FULL, window(9)), (window(3), FULL, window(20))))
        kv = KvSpace(groups, [60] * len(groups), block_size=size, max_slice=rows, max_rows=rows)
        none = (0,) * len(groups)
        running, flying = [], None
        for _ in range(draw.randint(1, 9)):
            one = owner()
            one.goal = draw.randint(1, 40)
            if not kv.reserve(one, one.goal, spare=none):
                break
            one.at = draw.randint(0, one.goal)
            for at in range(one.at):
                assert kv.extend(one, at + 1, lend=True)
                kv.trim(one, at + 1)
            running.append(one)
        flying = draw.choice(running)
        assert kv.extend(flying, min(flying.goal, flying.at + rows), lend=True)
        room = Room(kv)
        for victim in [None, *(one for one in running if one is not flying)]:
            if victim is not None:
                room.give_back(victim)
                kv.release(victim)
            for _ in range(8):
                reach, spare = draw.randint(1, 60), tuple(draw.choice((0, 0, 3)) for _ in groups)
                new = owner()
                fits = kv.reserve(new, reach, spare=spare)
                kv.release(new)
                assert room.holds(reach, spare) == fits, f"seed {seed}"
                SEEN[f"fits {fits}"] += 1
    assert min(SEEN["fits True"], SEEN["fits False"]) > 100


def test_nothing_is_spared_where_nobody_lacks_anything():
    bound = WindowBound.of(9, block_size=4, max_slice=20, max_rows=20)
    for seats in (1, 5, 30):
        enough = bound.together(seats)
        for count, left in ((enough, 0), (enough - 1, (enough - 1) // 10)):
            kv = KvSpace((FULL, window(9)), (100, count), block_size=4, max_slice=20, max_rows=20)
            assert kv.spare(0.1, seats) == (10, left)


def refusing(reserve, refused: list[int]):
    """``reserve``, which notes in ``refused`` what it has no blocks for."""

    def asked(one, reach, **more) -> bool:
        given = reserve(one, reach, **more)
        if not given:
            refused.append(reach)
        return given

    return asked


@pytest.mark.parametrize("seed", range(30))
def test_the_plan_takes_what_it_was_made_for(seed):
    """As many requests as planned, of full length and all at once: nobody waits for blocks or loses them."""
    draw = Random(seed)
    size, seqs, longest = draw.choice((2, 4, 8)), draw.randint(1, 6), draw.randint(40, 160)
    rows = draw.choice((seqs, seqs + 3, 24, 64))
    groups = tuple(window(draw.choice((1, 3, 8, 17, 40))) for _ in range(draw.randint(1, 2)))
    groups = (*groups, FULL)[:: draw.choice((1, -1))]
    layout = Layout(groups, size, seqs, rows, rows)
    rig = Rig(
        groups=groups,
        blocks=layout.split(seqs * layout.blocks_of(longest)),
        capabilities=Capabilities(device="null", block_size=size, speculation=True),
        seqs=seqs,
        rows=rows,
        max_len=longest,
        watermark=0.01,  # of a full group of this size nothing; of the window groups it is not asked
        prefix_cache=False,
    )
    # The first answers last until the last prompt is there.
    requests = []
    for i in range(seqs):
        output = draw.randint(1, longest - 1)
        requests.append(request(i, longest - output, output))
    rig.add(*requests)
    wanted = {r.id: expected(r, list(r.known), longest) for r in requests}
    refused = []
    rig.scheduler.kv.reserve = refusing(rig.scheduler.kv.reserve, refused)
    flying = []
    while rig.scheduler.has_work:
        step = rig.scheduler.schedule(rig.now)
        rig.now += 1.0
        if step is not None:
            flying.append(step)
        while flying and (step is None or len(flying) > draw.randint(0, 1)):
            done = flying.pop(0)
            rig.take(rig.scheduler.commit(done, rig.runner.execute(done)))
    rig.take(rig.scheduler.drain())
    assert not refused
    assert rig.scheduler.stats.preemptions == 0
    for id, want in wanted.items():
        assert (rig.results[id].ids, rig.results[id].reason) == (want.ids, want.reason)
