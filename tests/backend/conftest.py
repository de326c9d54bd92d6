"""Every runner that computes, under one fixture."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from spola.backends.registry import backend
from spola.core.runner import Runner
from support.drive import Driver
from support.sampling import TINY
from support.tiny import Tiny, TinyModel

RUNNERS = ("reference", "reference-quantized", "native")


class Bench:
    """One kind of runner; loads tiny models into fresh ones and closes them at the end of a test."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runners: list[Runner] = []

    @property
    def exact(self) -> bool:
        """Whether the runner promises bits that depend on nothing but the request."""
        return backend(self.kind)().capabilities.invariant

    def runner(self) -> Runner:
        self.runners.append(backend(self.kind)())
        return self.runners[-1]

    def load(self, model: TinyModel | Tiny | None = None, *, seed: int = 0, **config) -> Driver:
        """Free blocks hold NaN; a runner without exact bits gets an f32 cache, where they show less."""
        model = model if isinstance(model, TinyModel) else TinyModel(model)
        config.setdefault("kv", "f16" if self.exact else "f32")
        runner, settings = self.runner(), model.config(**config)
        runner.load(model.spec, model, settings)
        return Driver(runner, settings, model.tiny.vocab, seed)


@pytest.fixture(params=RUNNERS)
def bench(request):
    if request.param == "native" and find_spec("spola._native") is None:
        pytest.skip("the native extension is not built")
    bench = Bench(request.param)
    yield bench
    for runner in bench.runners:
        runner.close()


@pytest.fixture
def driver(bench: Bench) -> Driver:
    """On the model of ``support.sampling``."""
    return bench.load(TINY, blocks=160)
