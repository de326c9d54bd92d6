"""Models with sliding windows through the engine, on the native backend.

Window groups give blocks back while the full groups keep theirs, texts that begin alike are found in the
prefix cache also then, and each output has the bits of the request run alone.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_families import case_of, make_runner

from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, RunnerConfig
from spola.core.step import Slice, Step
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import open_folder
from spola.load.weights import iter_tensors
from spola.spec.from_hf import from_hf
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from support.families import write_folder

LENGTH, ROWS = 256, 32
GONE = -1
# Windows of 20 in every other layer, in six of seven, from the second layer on; of 24 in all layers.
NAMES = ("gemma2", "gemma3", "qwen2-window", "mistral")


@dataclass
class Got:
    ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)


class Model:
    """An engine with the family ``name`` in it; ``full`` and ``window`` blocks for groups of each kind."""

    def __init__(self, folder: Path, full: int, window: int, *, seqs: int, cache: bool) -> None:
        with open_folder(folder) as file:
            table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
            model = from_hf(read_json(folder / "config.json"), table)
            self.groups = kv_groups(model.spec, "f16", "f16")
            config = RunnerConfig(
                kv_groups=self.groups,
                kv_blocks=tuple(window if group.kind == "window" else full for group in self.groups),
                max_step_tokens=ROWS,
                max_seqs=seqs,
                max_model_len=LENGTH,
                threads=1,
            )
            self.runner = make_runner("native")
            self.runner.load(model.spec, iter_tensors(file, manifest(model.spec), model.sources), config)
        limits = Limits(
            max_step_tokens=ROWS, max_seqs=seqs, max_model_len=LENGTH, watermark=0.0, prefix_cache=cache
        )
        self.scheduler = Scheduler(
            limits, self.runner.capabilities, config.kv_groups, config.kv_blocks, check=True
        )
        self.steps: list[Step] = []
        self.engine = Engine(self.runner, self.scheduler, vocab=model.spec.vocab, record=self._record)
        self.got: dict[int, Got] = {}

    def _record(self, step: Step, output: object) -> None:
        self.steps.append(step)

    def step(self) -> None:
        for event in self.engine.step(float(len(self.steps))):
            assert event.error is None, event.error
            got = self.got.setdefault(event.id, Got())
            got.ids += event.ids
            got.logprobs += event.logprobs or ()

    def finish(self) -> dict[int, Got]:
        while self.engine.has_work:
            self.step()
        return self.got

    def starts(self, since: int = 0) -> dict[int, int]:
        """Of each request that came after step ``since``, the first position that was computed."""
        out: dict[int, int] = {}
        for step in self.steps[since:]:
            for piece in step.slices:
                out.setdefault(piece.id, piece.start)
        return out


@contextmanager
def opened(
    folder: Path, full: int = 64, window: int = 64, *, seqs: int = 1, cache: bool = False
) -> Iterator[Model]:
    model = Model(folder, full, window, seqs=seqs, cache=cache)
    try:
        yield model
    finally:
        model.engine.close()


def ids_of(seed: int, n: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 96) for _ in range(n)]


def request(id: int, ids: list[int], tokens: int = 20) -> Request:
    params = SamplingParams(max_tokens=tokens, temperature=0.8 if id % 2 else 0.0, logprobs=2)
    return Request(id=id, ids=ids, params=params, seed=id)


def mixed(id: int) -> Request:
    """Request ``id``, always the same: most begin like others, some well past their windows."""
    draw = random.Random(id)
    ids = ids_of(7, draw.choice((40, 64, 130))) if id % 4 else []
    return request(id, ids + ids_of(100 + id, draw.choice((3, 40, 90))), draw.choice((4, 25, 34)))


def alone(folder: Path, requests: list[Request]) -> dict[int, Got]:
    """Each request by itself, in a pool with room and without a prefix cache."""
    with opened(folder) as model:
        for one in requests:
            model.engine.add(one)
            model.finish()
        return model.got


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
    with opened(folder, full=8, window=3) as model:
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
    with opened(folder, seqs=2, cache=True) as model:
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
    with opened(folder, full=64, window=4, cache=True) as model:
        for i, ids in enumerate(texts):
            model.engine.add(request(i, ids, 4))
            model.finish()
        assert model.got == want
        assert model.starts()[5] == 0
    with opened(folder, full=64, window=64, cache=True) as model:
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
        with opened(folder, full, window, seqs=4, cache=True) as model:
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
