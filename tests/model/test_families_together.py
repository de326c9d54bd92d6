"""Every family's requests in one batch: what is asked of a row, and of its company, changes no bit.

Slices of one step want their last row, some rows, all or none (of which those leave after the last layer's KV
write), beside others that decode; tests/backend does the same with one plain model and more formats.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.core.runner import RunnerConfig
from spola.core.step import Want
from spola.spec.kv import kv_groups
from support.drive import Driver, Job, Outcome, greedy
from support.families import CASES, write_folder
from support.family_gguf import write_case_gguf
from support.loaded import NO_GGUF, case_of, make_runner, opened

KINDS: tuple[Want, ...] = (
    "sample",
    "logits",
    "sample",
    "score",
    "embed_last",
    "sample",
    "embed_mean",
    "sample",
)
LENGTHS = (33, 13, 2, 48, 31, 1, 12, 40)
LONGEST = 64


def jobs_of(vocab: int) -> list[Job]:
    draw = random.Random(4)
    jobs = []
    for at, (want, n) in enumerate(zip(KINDS, LENGTHS, strict=True)):
        prompt = [draw.randrange(vocab) for _ in range(n)]
        known = 1 if want == "sample" and at % 4 == 0 else None
        params = greedy(temperature=0.8 * (at % 3 == 0), logprobs=2, prompt_logprobs=known)
        jobs.append(Job(prompt, 4, params, seed=at, want=want))
    return jobs


def load(name: str, folder: Path, kv: str, threads: int) -> Driver:
    """From a GGUF file in 4 bits, or F16 where its rows do not fit; else from a folder in F32."""
    case = case_of(name)
    path = folder / "model.gguf"
    if name in NO_GGUF:
        path = folder / "model"
        write_folder(path, case)
    else:
        try:
            write_case_gguf(path, case, "Q4_0")
        except ValueError:  # rows that are no whole blocks
            write_case_gguf(path, case, "F16")
    runner = make_runner("native")
    with opened(path) as model:
        groups = kv_groups(model.spec, kv, kv)
        config = RunnerConfig(
            kv_groups=groups,
            kv_blocks=(40,) * len(groups),
            max_step_tokens=512,
            max_seqs=len(KINDS),
            max_model_len=min(LONGEST, model.spec.context),
            threads=threads,
        )
        runner.load(model.spec, model.tensors, config)
    return Driver(runner, config, model.spec.vocab, seed=threads)


def bits(out: Outcome) -> tuple[object, ...]:
    assert out.error is None
    vector = None if out.vector is None else out.vector.tobytes()
    logits = np.array(out.logits, np.float32).tobytes()
    return out.ids, out.logprobs, out.prompt_logprobs, out.scores, logits, vector


@pytest.mark.parametrize("name", CASES)
def test_alone_or_together(name: str, tmp_path: Path) -> None:
    kv, threads = ("int8", 1) if CASES.index(name) % 2 else ("f16", 2)
    driver = load(name, tmp_path, kv, threads)
    try:
        jobs = jobs_of(driver.vocab)
        alone = [bits(driver.alone(job)) for job in jobs]
        for chunk in (7, 13, 512):
            assert [bits(out) for out in driver.run(jobs, chunk)] == alone, chunk
        assert bits(driver.preempted(jobs[0], 2)) == alone[0]
        assert len({repr(found) for found in alone}) == len(jobs)
    finally:
        driver.runner.close()
