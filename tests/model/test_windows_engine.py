"""Models with sliding windows through the engine, on the native backend.

Window groups give blocks back while the full groups keep theirs, texts that begin alike are found in the
prefix cache also then, and each output has the bits of the request run alone.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from spola.core.runner import BLOCK_TOKENS
from spola.core.step import Slice
from support.families import write_folder
from support.family_engine import alone, engine_on, ids_of, mixed, request
from support.loaded import case_of

GONE = -1
# Windows of 20 in every other layer, in six of seven, from the second layer on; of 24 in all layers.
NAMES = ("gemma2", "gemma3", "qwen2-window", "mistral")


def tables(piece: Slice) -> list[array[int]]:
    out = []
    for raw in piece.tables:
        out.append(array("i"))
        out[-1].frombytes(raw)
    return out


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", case_of(request.param))
    return tmp_path / "model"


def test_a_long_text_needs_few_blocks_of_its_windows(folder: Path) -> None:
    """Three blocks hold any window and a chunk; the full groups need eight for the same text."""
    one = request(1, ids_of(1, 200), 50)
    want = alone(folder, [request(1, ids_of(1, 200), 50)])
    with engine_on(folder, full=8, window=3) as model:
        model.engine.add(one)
        assert model.finish() == want
        assert len(want[1].ids) == 50
        for step in model.steps:
            (piece,) = step.slices
            for group, table in zip(model.groups, tables(piece), strict=True):
                # One position more than this row sees is kept: the last one may have to be computed again.
                dead = max(0, piece.start - group.window) // BLOCK_TOKENS if group.kind == "window" else 0
                assert [block == GONE for block in table] == [i < dead for i in range(len(table))]
        last = tables(model.steps[-1].slices[0])
        held = {g.kind: sum(b != GONE for b in table) for g, table in zip(model.groups, last, strict=True)}
        assert held["window"] <= 2
        assert held.get("full", 8) == 8


def test_a_text_seen_before_is_found_behind_its_window(folder: Path) -> None:
    prefix = ids_of(2, 160)
    again = [prefix + ids_of(3, 9), prefix[:100] + ids_of(4, 50), prefix + ids_of(3, 9)]
    want = alone(folder, [request(i, ids) for i, ids in enumerate([prefix, *again])])
    with engine_on(folder, seqs=2, cache=True) as model:
        for i, ids in enumerate([prefix, *again]):
            model.engine.add(request(i, ids))
            model.finish()
        assert model.got == want
        starts = model.starts()
        assert starts[0] == 0
        assert starts[1] == 160
        # Only whole blocks are found of the text that goes another way; the last prompt is known but its end.
        assert 64 <= starts[2] <= 100
        assert starts[3] >= 160


def test_blocks_of_a_window_that_were_reused_are_not_found(folder: Path) -> None:
    """The full groups still know the text when its last window is lost: it must be computed again."""
    prefix = ids_of(5, 150)
    others = [ids_of(50 + i, 90) for i in range(4)]
    texts = [prefix, *others, prefix]
    want = alone(folder, [request(i, ids, 4) for i, ids in enumerate(texts)])
    with engine_on(folder, full=64, window=4, cache=True) as model:
        for i, ids in enumerate(texts):
            model.engine.add(request(i, ids, 4))
            model.finish()
        assert model.got == want
        assert model.starts()[5] == 0
    with engine_on(folder, full=64, window=64, cache=True) as model:
        for i, ids in enumerate(texts):
            model.engine.add(request(i, ids, 4))
            model.finish()
        assert model.got == want
        assert model.starts()[5] == 128  # its whole blocks


def test_any_mix_gives_what_each_gives_alone(folder: Path) -> None:
    want = alone(folder, [mixed(id) for id in range(10)])
    preempted = hits = together = 0
    for seed, (full, window) in enumerate(((64, 64), (14, 9))):
        draw = random.Random(seed)
        arrivals = list(range(10))
        draw.shuffle(arrivals)
        with engine_on(folder, full, window, seqs=4, cache=True) as model:
            while arrivals or model.engine.has_work:
                if arrivals and (draw.random() < 0.2 or not model.engine.has_work):
                    model.engine.add(mixed(arrivals.pop()))
                model.step()
            assert model.got == want
            preempted += model.scheduler.stats.preemptions
            hits += sum(start > 20 for start in model.starts().values())
            together += sum(len(step.slices) >= 3 for step in model.steps)
            assert all(pool.used == 0 for pool in model.scheduler.kv.pools)
    assert hits >= 4
    assert together >= 10
    assert preempted >= (0 if len(model.groups) == 1 else 1)
