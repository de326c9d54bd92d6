"""Sampling settings from LLM down to the runner: words become ids, and what they ask for comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from spola import LLM, SamplingParams
from spola.core.errors import ConfigError, RequestError
from support.tiny import Tiny, write_tiny_gguf

PROMPT = "then the man ran in the rain, then the man"


@pytest.fixture
def make(bench, tmp_path: Path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, Tiny(seed=11, vocab=288))
    made: list[LLM] = []

    def llm(**options) -> LLM:
        made.append(LLM(str(path), backend=bench.kind, threads=1, kv_memory=8_000_000, **options))
        return made[-1]

    yield llm
    for one in made:
        one.close()


def one(llm: LLM, **fields):
    return llm.generate(PROMPT, SamplingParams(**({"temperature": 0.0, "max_tokens": 24} | fields)))[0]


def test_bad_words_are_not_written(make) -> None:
    llm = make()
    loose = {"temperature": 3.0, "seed": 5, "max_tokens": 120, "ignore_eos": True}
    plain = one(llm, **loose).outputs[0].text
    words = [word for word in ("a", "e", "in", " t", "he") if word.strip() in plain]
    assert words
    ids = llm.get_tokenizer().encode(words[0].strip(), add_bos=False, add_eos=False)
    out = one(llm, bad_words=words, **loose).outputs[0]
    assert out.error is None
    if len(ids) == 1:
        assert ids[0] not in out.token_ids
    assert out.text != plain


def test_min_tokens_and_allowed_ids(make) -> None:
    llm = make()
    eos = llm.get_tokenizer().eos_id
    pushed = {"logit_bias": {eos: 100.0}}
    assert len(one(llm, **pushed).outputs[0].token_ids) == 1
    late = one(llm, min_tokens=9, **pushed).outputs[0]
    assert (len(late.token_ids), late.token_ids[-1], late.finish_reason) == (10, eos, "stop")
    stop = one(llm).outputs[0].token_ids[2]
    assert stop not in one(llm, min_tokens=20, stop_token_ids=[stop]).outputs[0].token_ids[:20]
    only = one(llm, allowed_token_ids=[65, 70, 80], temperature=1.0, seed=2).outputs[0]
    assert set(only.token_ids) <= {65, 70, 80}
    with pytest.raises(RequestError, match="allowed_token_ids"):
        one(llm, allowed_token_ids=[99999])


def test_prompt_logprobs_come_once_per_prompt(make) -> None:
    llm = make()
    whole = one(llm, prompt_logprobs=2, n=3, temperature=1.0, seed=1)
    assert len(whole.outputs) == 3
    assert whole.prompt_logprobs[0] is None
    assert len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
    for token, table in zip(whole.prompt_token_ids[1:], whole.prompt_logprobs[1:], strict=True):
        assert token in table
        assert 2 <= len(table) <= 3
    assert one(llm).prompt_logprobs is None
    assert len({tuple(choice.token_ids) for choice in whole.outputs}) == 3


def test_speculation_by_option_changes_only_the_number_of_steps(make, bench) -> None:
    plain = make()
    want = one(plain, logprobs=1, max_tokens=60, ignore_eos=True).outputs[0]
    for kind in ("ngram", "suffix"):
        llm = make(speculate=kind)
        got = one(llm, logprobs=1, max_tokens=60, ignore_eos=True, stop=["\x00never"]).outputs[0]
        assert got.token_ids == want.token_ids
        if bench.exact:
            assert got.logprobs == want.logprobs
        stats = llm.service.loop._engine.scheduler.stats
        assert 0 < stats.accepted_tokens <= stats.draft_tokens
    with pytest.raises(ConfigError, match="speculate"):
        make(speculate="magic")
