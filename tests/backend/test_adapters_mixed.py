"""Several adapters in one batch: each request has the bits of its solo run, whatever shares the steps."""

from __future__ import annotations

from typing import Any

import pytest

from spola import LLM, LoRARequest, SamplingParams
from spola.core.errors import RequestError
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from support.adapters import tiny_factors, write_adapter
from support.tiny import Tiny, write_tiny_gguf

KINDS = ("native", "reference-quantized")
TEXTS = ["the rain in Spain", "the rain in Spain falls", "12 then", "the rain in Spain"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A tiny model, and the folders of two adapters, one of which leaves attention alone."""
    folder = tmp_path_factory.mktemp("lora")
    tiny = Tiny()
    write_tiny_gguf(folder / "tiny.gguf", tiny)
    write_adapter(folder / "a", tiny_factors(tiny, 1))
    some = {name: values for name, values in tiny_factors(tiny, 2).items() if ".mlp." in name}
    write_adapter(folder / "b", some, dtype="BF16")
    return str(folder / "tiny.gguf"), {"a": str(folder / "a"), "b": str(folder / "b")}


def params(n: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=n, temperature=0.8, seed=5, ignore_eos=True, logprobs=1, **more)


def answers(llm: LLM, which: list[str | None]) -> list[tuple[Any, ...]]:
    requests = [None if name is None else LoRARequest(name, 1) for name in which]
    outputs = llm.generate(TEXTS * 3, params(20), lora_request=requests)
    return [(o.outputs[0].token_ids, repr(o.outputs[0].logprobs)) for o in outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_has_the_bits_of_solo_runs(kind: str, places: tuple[str, dict[str, str]]) -> None:
    model, folders = places
    which = [None, "a", "b", "a", "a", "b", None, "b", "b", None, "a", None]
    solo: dict[tuple[str, str | None], tuple[Any, ...]] = {}
    with LLM(model, backend=kind, lora=folders, kv_memory=8 << 20, enable_prefix_caching=False) as llm:
        for text, name in {(t, n) for t, n in zip(TEXTS * 3, which, strict=True)}:
            request = None if name is None else LoRARequest(name)
            output = llm.generate(text, params(20), lora_request=request)[0].outputs[0]
            solo[text, name] = (output.token_ids, repr(output.logprobs))
    wanted = [solo[key] for key in zip(TEXTS * 3, which, strict=True)]
    assert len({str(answer[0]) for answer in solo.values()}) > 5  # adapters change answers
    # Everything at once, the prefix cache on; then a pool so small that requests are thrown out and come
    # back.
    for more in ({"threads": 1}, {"threads": 3, "kv_memory": 120_000, "speculate": "ngram"}):
        with LLM(model, backend=kind, lora=folders, **{"kv_memory": 8 << 20, **more}) as llm:
            assert answers(llm, which) == wanted
            assert answers(llm, which) == wanted  # now with prefixes of the same adapter in the cache
            assert (llm.service.metrics.preemptions > 0) is ("speculate" in more)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_without_adapters_are_as_without_any_loaded(
    kind: str, places: tuple[str, dict[str, str]]
) -> None:
    model, folders = places
    found = []
    for lora in (None, folders):
        with LLM(model, backend=kind, lora=lora, kv_memory=8 << 20) as llm:
            found.append(answers(llm, [None] * 12))
    assert found[0] == found[1]


def test_prefixes_are_shared_within_an_adapter_only(places: tuple[str, dict[str, str]]) -> None:
    model, folders = places
    text = "the rain in Spain falls mainly on the plain, they say, and so on and on and on"
    with LLM(model, lora=folders, kv_memory=8 << 20) as llm:
        for name in (None, "a", "b"):
            request = None if name is None else LoRARequest(name)
            cached = [
                llm.generate(text, params(4), lora_request=request)[0].num_cached_tokens for _ in range(2)
            ]
            assert cached[0] == 0, name
            assert cached[1] >= 32, name


def test_what_is_counted(places: tuple[str, dict[str, str]]) -> None:
    model, folders = places
    loaded = load_engine(model, Options(lora=tuple(folders.items()), kv_memory=1 << 20))
    plain = load_engine(model, Options(kv_memory=1 << 20))
    try:
        assert loaded.config.adapters == ("a", "b")
        assert loaded.config.max_lora_rank == 4
        held = loaded.engine.runner.memory()["weights"] - plain.engine.runner.memory()["weights"]
        assert held == loaded.config.adapter_bytes
    finally:
        loaded.engine.close()
        plain.engine.close()


def test_faults_name_the_adapter(places: tuple[str, dict[str, str]]) -> None:
    model, folders = places
    with LLM(model, lora={"a": folders["a"]}, kv_memory=8 << 20) as llm:
        with pytest.raises(RequestError, match="'b' is not loaded"):
            llm.generate("x", lora_request=LoRARequest("b", 1, folders["b"]))
        with pytest.raises(RequestError, match="was loaded from"):
            llm.generate("x", lora_request=LoRARequest("a", 1, folders["b"]))
        with pytest.raises(RequestError, match="2 lora_requests for 1 prompts"):
            llm.generate("x", lora_request=[None, None])
