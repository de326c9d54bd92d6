"""Every family against ``transformers``: logits of tiny random models, and greedy text, from safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spola.spec.catalog import CATALOG
from spola.spec.from_gguf import SUPPORTED as SUPPORTED_GGUF
from spola.spec.from_hf import SUPPORTED
from support.families import CASES, write_folder
from support.family_gguf import ARCHS, write_case_gguf
from support.loaded import NO_GGUF, ONLY_GGUF, Loaded, case_of, check, load

BACKENDS = ("reference", "native")
WRAPPED = {"mistral3"}  # what holds one of the types as its text part


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[name for name in CASES if name not in ONLY_GGUF])
def loaded(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Iterator[Loaded]:
    case = case_of(request.param)
    write_folder(tmp_path, case)
    loaded = load(tmp_path, case, kind)
    yield loaded
    loaded.runner.close()


def test_the_catalog_has_every_row() -> None:
    assert {entry.model_type for entry in CATALOG if entry.folders} == set(SUPPORTED)
    assert {entry.arch for entry in CATALOG if entry.files} == set(SUPPORTED_GGUF)


def test_every_model_type_has_a_case() -> None:
    seen = {case_of(name).config["model_type"] for name in CASES if name not in ONLY_GGUF}
    assert seen - WRAPPED == set(SUPPORTED)


def test_logits_and_greedy_text(loaded: Loaded) -> None:
    case, run = loaded.case, loaded.run
    assert loaded.warnings == () or case.config["model_type"] in WRAPPED
    found = [run.logits(case.ids, chunks) for chunks in ((64,), (5, 17, 31), (1,))]
    for logits in found:
        check(logits, case)
        if run.runner.capabilities.invariant:
            assert np.array_equal(logits, found[0])
    assert run.greedy(case.ids, len(case.greedy)) == case.greedy


# Families whose parts the others do not have; both quantized formats of activations.
@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "gemma2", "gpt2", "gpt_neox", "gpt_oss", "mixtral", "olmo2", "phi", "qwen2_moe"],
)
def test_native_is_the_quantized_reference(name: str, dtype: str, tmp_path: Path) -> None:
    case = case_of(name)
    write_case_gguf(tmp_path / "model.gguf", case, dtype)
    found = []
    for kind in ("native", "reference-quantized"):
        run = load(tmp_path / "model.gguf", case, kind).run
        found.append(run.logits(case.ids, (40,)))
        assert np.array_equal(run.logits(case.ids, (7, 1, 20)), found[-1])
    native, reference = found
    assert np.abs(native - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize("name", ["deepseek_v3", "gemma2", "mixtral", "qwen2_moe", "gpt_neox"])
def test_threads_do_not_show(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    write_case_gguf(tmp_path / "model.gguf", case, "Q4_0")
    found = [
        load(tmp_path / "model.gguf", case, "native", threads).run.logits(case.ids, (33,))
        for threads in (1, 3)
    ]
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_GGUF])
def test_gguf(name: str, tmp_path: Path, kind: str) -> None:
    case = case_of(name)
    write_case_gguf(tmp_path / "model.gguf", case)
    loaded = load(tmp_path / "model.gguf", case, kind)
    assert loaded.warnings == ()
    check(loaded.logits((64,)), case)
    check(loaded.logits((9, 1, 40)), case)
    assert loaded.run.greedy(case.ids, len(case.greedy)) == case.greedy


def test_every_architecture_has_a_case() -> None:
    seen = {ARCHS[case_of(name).text_config["model_type"]] for name in CASES if name not in NO_GGUF}
    assert seen == set(SUPPORTED_GGUF)
