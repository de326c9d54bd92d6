"""run --explain: its numbers are the API's logprobs and the sampler's own; its steps are those that ran."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spola.core.params import SamplingParams
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.explain import BEST, candidates, explain_steps, explain_tokens
from spola.runtime.limits import MachineLimits
from spola.runtime.loop import QueueMailbox
from spola.runtime.service import Service
from support.cli import spola
from support.tiny import write_tiny_gguf

LIMITS = MachineLimits("x", 1e10, {"f32": 1e11, "a8": 4e11, "a16": 2e11})


def answer(service: Service, params: SamplingParams) -> Any:
    mailbox = QueueMailbox()
    job = service.submit(list(range(10, 30)), params, mailbox, follow=True)
    while not job.done:
        for mail in mailbox.get():
            job.take(mail)
    return job


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.6, "repetition_penalty": 1.4},
        {"temperature": 1.0, "min_p": 0.2, "logit_bias": {7: 3.0}},
    ],
)
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_numbers_are_those_of_the_sampler(tmp_path: Path, backend: str, settings: dict[str, Any]) -> None:
    if backend == "native":
        pytest.importorskip("spola._native", reason="the native extension is not built")
    write_tiny_gguf(tmp_path / "tiny.gguf")
    service = build_service(str(tmp_path / "tiny.gguf"), Options(backend=backend))
    fields = {"max_tokens": 6, "ignore_eos": True, "seed": 5, "logprobs": BEST} | settings
    job = answer(service, SamplingParams(**fields))
    steps = explain_steps(service, job, LIMITS)
    tokens = list(explain_tokens(service, job))
    processed = answer(service, SamplingParams(**fields, logprobs_mode="processed"))
    service.close()
    ids = job.choices[0].token_ids
    assert processed.choices[0].token_ids == ids
    assert [token["id"] for token in tokens] == ids
    for token, raw, final in zip(tokens, job.choices[0].logprobs, processed.choices[0].logprobs, strict=True):
        assert [entry["id"] for entry in token["best"]] == [i for i, _ in raw.top]
        for entry, (_, logprob) in zip(token["best"], raw.top):
            assert entry["logprob"] == logprob
            assert math.log(entry["probability"]) == pytest.approx(logprob, abs=1e-5)
            assert entry["drawn"] == (entry["id"] == token["id"])
        left = {i for i, _ in final.top}
        for entry in token["best"]:
            if settings["temperature"] > 0 and len(left) < BEST:
                assert (entry["after_filters"] > 0) == (entry["id"] in left)
        assert all(0 <= entry["after_filters"] <= 1 for entry in token["best"])
    assert [step["phase"] for step in steps] == ["prefill"] + ["decode"] * 5
    assert [step["rows"] for step in steps] == [20] + [1] * 5
    assert [step["position"] for step in steps] == [0, *range(20, 25)]
    per_token = service.config.kv_bytes_per_token
    assert [step["kv_bytes"] // per_token for step in steps] == [20, *range(21, 26)]
    assert all(step["bound_s"] >= step["bytes_read"] / LIMITS.read for step in steps)
    assert [step["new_tokens"][0] for step in steps] == ids


def test_candidates_of_known_logits() -> None:
    logits = [2.0, 1.0, 0.0, -1.0] + [-50.0] * 20
    greedy = candidates(logits, SamplingParams(temperature=0.0), [], [])
    assert [entry["id"] for entry in greedy[:4]] == [0, 1, 2, 3]
    assert [entry["after_filters"] for entry in greedy[:3]] == [1.0, 0.0, 0.0]
    total = sum(math.exp(value) for value in logits)
    assert greedy[1]["probability"] == pytest.approx(math.e / total)
    top_k = candidates(logits, SamplingParams(temperature=0.5, top_k=2), [], [])
    assert [entry["after_filters"] > 0 for entry in top_k[:4]] == [True, True, False, False]
    assert top_k[0]["after_filters"] == pytest.approx(1 / (1 + math.exp(-2)))
    top_p = candidates(logits, SamplingParams(temperature=1.0, top_p=0.7), [], [])
    assert [entry["after_filters"] > 0 for entry in top_p[:3]] == [True, True, False]
    punished = candidates(logits, SamplingParams(temperature=1.0, presence_penalty=2.0), [], [0, 0])
    assert punished[0]["after_temperature"] == pytest.approx(punished[2]["after_temperature"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spola.cli import explain

    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    monkeypatch.setattr(explain, "known_limits", lambda machine, threads, say: (LIMITS, {}))
    args = ("run", "hello", "-m", str(path), "-n", "3", "--explain", "--backend", "reference")
    done = spola(*args)
    assert done.returncode == 0, done.stderr
    assert "step 0: prefill" in done.stdout
    assert done.stdout.count(" -> ") == 3
    assert "-bound)" in done.stdout
    found = json.loads(spola(*args, "--json").stdout)
    assert len(found["tokens"]) == len(found["steps"]) == 3
    assert len(found["tokens"][0]["best"]) == BEST
    assert [token["id"] for token in found["tokens"]] == found["token_ids"]
