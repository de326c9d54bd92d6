"""An engine with a family's model on the native backend, the steps it recorded, and requests to put to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spola.core.params import SamplingParams
from spola.core.runner import RunnerConfig
from spola.core.step import Step
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.spec.kv import kv_groups
from support.loaded import make_runner, opened

__all__ = ["FamilyEngine", "Got", "alone", "engine_on", "ids_of", "mixed", "request"]

LENGTH, ROWS = 256, 32


@dataclass
class Got:
    ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)


class FamilyEngine:
    """An engine with the model in ``folder``; ``full`` and ``window`` blocks for groups of each kind."""

    def __init__(self, folder: Path, full: int, window: int, *, seqs: int, cache: bool) -> None:
        with opened(folder) as model:
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
            self.runner.load(model.spec, model.tensors, config)
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
def engine_on(
    folder: Path, full: int = 64, window: int = 64, *, seqs: int = 1, cache: bool = False
) -> Iterator[FamilyEngine]:
    engine = FamilyEngine(folder, full, window, seqs=seqs, cache=cache)
    try:
        yield engine
    finally:
        engine.engine.close()


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
    with engine_on(folder) as model:
        for one in requests:
            model.engine.add(one)
            model.finish()
        return model.got
