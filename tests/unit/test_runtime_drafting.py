"""``draft=MODEL`` from the outside: what is taken, what is refused, where its memory comes from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError, ModelError
from spola.core.params import SamplingParams
from spola.formats.gguf_write import NewTensor, write_gguf
from spola.runtime.async_llm import AsyncLLM
from spola.runtime.build import load_engine
from spola.runtime.config import Options, parse_memory
from spola.runtime.llm import LLM
from support.cli import spola
from support.tiny import Tiny, TinyModel, write_tiny_gguf

BIG = Tiny(seed=11, vocab=288, layers=2)
MB = 1 << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    write_tiny_gguf(folder / "big.gguf", BIG)
    write_tiny_gguf(folder / "small.gguf", Tiny(seed=11, vocab=288, layers=1))
    return str(folder / "big.gguf"), str(folder / "small.gguf")


def eager(llm) -> None:
    """Draft as if a step cost nothing: tiny models would find that it does not pay."""
    speculator = llm.service.loop._engine.scheduler.speculator
    speculator.cost, speculator.draft_cost = (lambda rows: 1.0), (lambda rows: 0.01)


PROMPTS = ["the cat sat", "on the mat and then " * 4, "x" * 90]
PARAMS = [
    SamplingParams(temperature=t, max_tokens=40, seed=i, ignore_eos=True) for i, t in enumerate((0, 0.8, 1))
]


def test_llm_and_async_llm_answer_alike_with_a_draft_model(pair) -> None:
    big, small = pair
    with LLM(big) as llm:
        want = [out.outputs[0].token_ids for out in llm.generate(PROMPTS, PARAMS)]
    with LLM(big, speculate=f"draft={small}") as llm:
        eager(llm)
        assert [out.outputs[0].token_ids for out in llm.generate(PROMPTS, PARAMS)] == want
        stats = llm.service.loop._engine.scheduler.stats
        assert 0 < stats.accepted_tokens < stats.draft_tokens
        assert llm.service.config.draft.model == "small"

    async def all_of(llm: AsyncLLM) -> list[list[int]]:
        async def one(i: int) -> list[int]:
            async for out in llm.generate(PROMPTS[i], PARAMS[i], str(i)):
                last = out
            return last.outputs[0].token_ids

        return await asyncio.gather(*map(one, range(len(PROMPTS))))

    with AsyncLLM(big, speculate=f"draft={small}") as llm:
        eager(llm)
        assert asyncio.run(all_of(llm)) == want


def test_rejection_mode_answers_and_draws_from_the_same_seed(pair) -> None:
    big, small = pair
    with LLM(big, speculate=f"draft={small}", draft_rule="rejection") as llm:
        eager(llm)
        outs = llm.generate(PROMPTS, PARAMS)
        assert [len(out.outputs[0].token_ids) for out in outs] == [40, 40, 40]
        assert llm.service.loop._engine.drafter.failure is None
        assert llm.service.loop._engine.scheduler.stats.accepted_tokens > 0


def test_another_tokenizer_is_refused_by_name(pair, tmp_path: Path) -> None:
    big, _ = pair
    swapped = tmp_path / "swapped.gguf"
    model = TinyModel(BIG)
    tokens = model.metadata["tokenizer.ggml.tokens"]
    tokens[100], tokens[101] = tokens[101], tokens[100]
    tensors = [
        NewTensor(info.gguf, BY_NAME[tensor.dtype], tensor.shape, tensor.data)
        for info, tensor in zip(model.infos, model.tensors, strict=True)
    ]
    write_gguf(swapped, model.metadata, tensors)
    with pytest.raises(ModelError, match=r"draft model swapped .*another tokenizer than big: token 100 is"):
        load_engine(big, Options(speculate=f"draft={swapped}"))
    done = spola("run", "hello", "-m", big, "--speculate", f"draft={swapped}")
    assert done.returncode == 1
    assert "swapped" in done.stderr
    assert done.stderr.count("\n") == 1


def test_its_cache_comes_out_of_the_same_memory(pair) -> None:
    big, small = pair
    options = {"kv_memory": 4 * MB, "max_seqs": 16, "max_step_tokens": 64}
    plain = load_engine(big, Options(**options))
    both = load_engine(big, Options(**options, speculate=f"draft={small}"))
    try:
        config, draft = both.config, both.config.draft
        assert config.kv_bytes + draft.kv_bytes <= 4 * MB
        assert config.kv_blocks[0] == draft.kv_blocks[0] < plain.config.kv_blocks[0]
        held = both.engine.drafter.runner.memory()["kv"] + both.engine.runner.memory()["kv"]
        assert held <= 4 * MB
        assert draft.kv_bytes == draft.kv_blocks[0] * draft.kv_groups[0].bytes_per_block
    finally:
        plain.engine.close()
        both.engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculate": "draft="}, "needs the name of a model"),
        ({"speculate": "medusa"}, r"none of off, ngram, suffix, draft=MODEL"),
        ({"draft_rule": "rejection"}, "for drafts of a model"),
        ({"draft_rule": "rejection", "speculate": "ngram"}, "for drafts of a model"),
        ({"draft_rule": "typical", "speculate": "draft=x"}, "none of match, rejection"),
        ({"kv_memory": 1.5}, "fraction"),
        ({"kv_memory": 0.0}, "fraction"),
        ({"reservation": "contiguous"}, "prefix cache"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**options)


def test_memory_as_bytes_or_as_a_fraction(pair) -> None:
    assert parse_memory("512M", "x") == 512_000_000
    assert parse_memory("40%", "x") == 0.4
    for wrong in ("0%", "100%", "-3%", "%", "x"):
        with pytest.raises(ConfigError, match=r"^x: "):
            parse_memory(wrong, "x")
    loaded = load_engine(pair[0], Options(kv_memory=0.001, max_seqs=1 << 12, max_step_tokens=1 << 12))
    try:
        most = 0.001 * loaded.config.usable_bytes
        assert most / 2 < loaded.config.kv_bytes <= most
    finally:
        loaded.engine.close()


def test_command_line(pair, tmp_path: Path) -> None:
    big, small = pair
    plain = spola("run", "hello there", "-m", big, "--raw", "-n", "20", "--json")
    done = spola(
        "run", "hello there", "-m", big, "--raw", "-n", "20", "--json", "--speculate", f"draft={small}", "-v"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == json.loads(plain.stdout)["token_ids"]
    assert "drafts     small" in done.stderr
    lines = tmp_path / "in.jsonl"
    body = {"model": "big", "prompt": "a", "max_tokens": 3}
    lines.write_text(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}))
    out = tmp_path / "out.jsonl"
    args = ["batch", str(lines), "-o", str(out), "-m", big, "--speculate", f"draft={small}"]
    refused = spola(*args, "--draft-rule", "rejection")
    assert refused.returncode == 2
    assert "--draft-rule match" in refused.stderr
    assert spola(*args).returncode == 0
    contiguous = [*args[:6], "--reservation", "contiguous", "--max-model-len", "64"]
    out.unlink()
    assert "prefix cache" in spola(*contiguous).stderr
    assert spola(*contiguous, "--no-prefix-cache").returncode == 0
