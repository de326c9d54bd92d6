"""Log-probabilities of tokens drawn and of the prompt: of the raw distribution, or of the one drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.drive import Driver, Job, greedy
from support.sampling import PROMPT, V, logits_after, sampled


def test_logprobs_are_of_the_raw_distribution(driver: Driver) -> None:
    raw = logits_after(driver, PROMPT).astype(np.float64)
    want = raw - (math.log(np.exp(raw - raw.max()).sum()) + raw.max())
    assert np.exp(want).sum() == pytest.approx(1)
    changes = (
        greedy(logprobs=20),
        greedy(logprobs=20, logit_bias={3: 50.0}, repetition_penalty=1.5),
        sampled(logprobs=20, temperature=0.2, top_k=2, top_p=0.5),
    )
    for params in changes:
        out = driver.alone(Job(PROMPT, 1, params))
        (entry,) = out.logprobs
        assert entry.id == out.ids[0]
        assert entry.logprob == pytest.approx(want[entry.id], abs=2e-5)
        assert len(entry.top) == 20
        assert [i for i, _ in entry.top] == sorted(range(V), key=lambda i: (-raw[i], i))[:20]
        assert [p for _, p in entry.top] == pytest.approx([want[i] for i, _ in entry.top], abs=2e-5)


def test_logprobs_only_when_asked_for(driver: Driver) -> None:
    assert driver.alone(Job(PROMPT, 2, greedy(logprobs=None))).logprobs == []
    entries = driver.alone(Job(PROMPT, 2, greedy(logprobs=0))).logprobs
    assert [entry.top for entry in entries] == [(), ()]


def test_prompt_logprobs_are_the_scores_of_the_prompt(driver: Driver) -> None:
    scores = driver.alone(Job(PROMPT, want="score")).scores
    plain = driver.alone(Job(PROMPT, 3, greedy()))
    for chunk in (512, 7):
        job = Job(PROMPT, 3, greedy(prompt_logprobs=4, logit_bias={5: 0.5}, repetition_penalty=1.01))
        (out,) = driver.run([job], chunk)
        assert out.error is None
        assert [entry.id for entry in out.prompt_logprobs] == PROMPT[1:]
        assert [entry.logprob for entry in out.prompt_logprobs] == pytest.approx(scores, abs=1e-4)
        for place, entry in enumerate(out.prompt_logprobs):
            raw = logits_after(driver, PROMPT[: place + 1]) if place % 13 == 0 else None
            if raw is not None:
                assert [i for i, _ in entry.top] == sorted(range(V), key=lambda i: (-raw[i], i))[:4]
    (out,) = driver.run([Job(PROMPT, 3, greedy(prompt_logprobs=0))], 7)
    assert (out.ids, out.logprobs) == (plain.ids, plain.logprobs) or not driver.runner.capabilities.invariant
    assert all(entry.top == () for entry in out.prompt_logprobs)


@pytest.mark.parametrize("target", [-1, V])
def test_a_prompt_target_outside_the_vocabulary_is_refused(driver: Driver, target: int) -> None:
    out = driver.alone(Job([3, target], 1, greedy(prompt_logprobs=1)))
    assert out.error is not None
    assert f"{target}" in out.error


def test_processed_logprobs_are_of_what_is_drawn_from(driver: Driver) -> None:
    raw = logits_after(driver, PROMPT)
    for fields in (
        {"temperature": 0.5},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 2.0, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.0, "logit_bias": {5: 3.0, 9: -100.0}, "top_k": 2},
    ):
        params = sampled(logprobs=20, logprobs_mode="processed", **fields)
        (entry,) = driver.alone(Job(PROMPT, 1, params, seed=3)).logprobs
        t = fields["temperature"] or 1.0
        cooked = raw.astype(np.float64) / t
        for i, bias in (params.logit_bias or {}).items():
            cooked[i] += bias
        order = sorted(range(V), key=lambda i: (-cooked[i], i))
        w = np.exp(cooked - cooked.max())
        keep = order[: params.top_k] if params.top_k and not params.greedy else order
        if params.top_p < 1:
            mass = np.cumsum(w[keep]) / w[keep].sum()
            keep = keep[: int(np.searchsorted(mass, params.top_p)) + 1]
        keep = [i for i in keep if w[i] >= params.min_p]
        want = {i: float(cooked[i] - cooked.max() - math.log(w[keep].sum())) for i in keep[:20]}
        assert dict(entry.top) == pytest.approx(want, abs=1e-4)
        assert entry.logprob == pytest.approx(
            float(cooked[entry.id] - cooked.max() - math.log(w[keep].sum())), abs=1e-4
        )
