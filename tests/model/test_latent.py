"""Latent attention on the native backend: what it keeps, long texts, KV types, and equal bits in company."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spola.core.errors import ConfigError, ModelError
from spola.core.runner import RunnerConfig
from spola.formats.gguf import open_gguf
from spola.spec.decoder import LatentAttention
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.from_hf import spec_of_config
from spola.spec.kv import kv_groups
from support.families import Run, write_folder
from support.family_engine import alone, engine_on, mixed
from support.family_gguf import write_case_gguf
from support.loaded import case_of, cosines, load, make_runner, opened

LONG = 700  # positions: three segments of attention, the last one of them not whole


def long_run(folder: Path, kind: str, kv: str, threads: int = 1) -> Run:
    """Room for ``LONG`` positions with a cache of type ``kv``."""
    with opened(folder) as model:
        config = RunnerConfig(
            kv_groups=kv_groups(model.spec, kv, kv),
            kv_blocks=(LONG // 32 + 4,),
            max_step_tokens=256,
            max_seqs=2,
            max_model_len=LONG,
            threads=threads,
        )
        runner = make_runner(kind)
        runner.load(model.spec, model.tensors, config)
    return Run(runner, config, model.spec.vocab)


def ids_of(n: int) -> list[int]:
    draw = random.Random(n)
    return [draw.randrange(3, 96) for _ in range(n)]


@pytest.fixture(params=["deepseek_v2-lite", "deepseek_v3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", case_of(request.param))
    return tmp_path / "model"


def test_one_vector_a_token_is_kept() -> None:
    spec = spec_of_config(case_of("deepseek_v3").config)
    (group,) = kv_groups(spec, "f16", "f16")
    assert (group.kind, group.heads, group.k_dim, group.v_dim) == ("latent", 1, 40, 32)
    assert group.bytes_per_token == len(spec.layers) * 40 * 2
    (int8,) = kv_groups(spec, "int8", "int8")
    assert int8.bytes_per_token == len(spec.layers) * (40 + 2 * 2)
    with pytest.raises(ConfigError, match="keeps K and V as one: give one KV type, not int8,f16"):
        kv_groups(spec, "int8", "f16")


@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
def test_a_long_text_in_every_kv_type(folder: Path, kv: str) -> None:
    """Against the quantized reference, which repeats the operations one by one; the weights are f32."""
    ids = ids_of(LONG - 20)
    native = long_run(folder, "native", kv, threads=2)
    chunks = [(200, 7, 1, 250), (256,)]
    found = [native.logits(ids, c) for c in chunks]
    assert np.array_equal(found[0], found[1])
    wanted = long_run(folder, "reference-quantized", kv).logits(ids[:300], (256,))
    worst = np.abs(found[0][:300] - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
    # A sum that rounds otherwise may move a value to the next step of int8 or f16; most rows see nothing.
    assert np.median(worst) < 1e-4
    assert worst.max() < (1e-4 if kv == "f32" else 0.05)
    if kv == "f32":
        plain = long_run(folder, "reference", kv).logits(ids, (256,))
        assert (np.abs(found[0] - plain).max(axis=1) < 2e-4 * np.abs(plain).max(axis=1)).all()


def test_free_blocks_are_not_read(folder: Path) -> None:
    ids = ids_of(300)
    run = long_run(folder, "native", "f16")
    clean = run.logits(ids, (90,))
    for block in range(run.config.kv_blocks[0]):
        run.runner.poison(0, block)  # type: ignore[attr-defined]
    assert np.array_equal(run.logits(ids, (90,)), clean)


def test_threads_and_instruction_counts_do_not_show(folder: Path) -> None:
    ids = ids_of(600)
    found = [long_run(folder, "native", "f16", threads).logits(ids, (256, 1)) for threads in (1, 3)]
    assert np.array_equal(found[0], found[1])


def test_any_mix_gives_what_each_gives_alone(folder: Path) -> None:
    want = alone(folder, [mixed(id) for id in range(8)])
    for seed, blocks in enumerate((64, 14)):
        draw = random.Random(seed)
        arrivals = list(range(8))
        draw.shuffle(arrivals)
        with engine_on(folder, blocks, seqs=4, cache=True) as model:
            while arrivals or model.engine.has_work:
                if arrivals and (draw.random() < 0.3 or not model.engine.has_work):
                    model.engine.add(mixed(arrivals.pop()))
                model.step()
            assert model.got == want
            assert sum(start > 20 for start in model.starts().values()) >= 1
            assert sum(len(step.slices) >= 3 for step in model.steps) >= 5


def test_a_joined_matrix_in_gguf(tmp_path: Path) -> None:
    """Files made before the absorbed form: plain numbers are taken apart, blocks cannot be."""
    case = case_of("deepseek_v2-lite")
    write_case_gguf(tmp_path / "new.gguf", case)
    with open_gguf(tmp_path / "new.gguf") as file:
        table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
        spec, _ = from_gguf(file.metadata, table)
        a = spec.layers[0].attention
        assert isinstance(a, LatentAttention)
        old = {n: e for n, e in table.items() if "attn_k_b" not in n and "attn_v_b" not in n}
        rows = a.heads * (a.nope_dim + a.v_dim)
        old |= {f"blk.{i}.attn_kv_b.weight": ("F16", (rows, a.kv_rank)) for i in range(len(spec.layers))}
        sources = gguf_sources(spec, old)
        keys = sources["layers.1.attention.k_b.weight"]
        assert [piece.below for piece in keys] == [h * (a.nope_dim + a.v_dim) for h in range(a.heads)]
        with pytest.raises(ModelError, match=r"blk\.0\.attn_kv_b\.weight is missing"):
            gguf_sources(spec, {n: e for n, e in table.items() if "attn_k_b" not in n})


def test_wrong_sizes_are_refused_by_name() -> None:
    config = case_of("deepseek_v3").config

    def refusal(**changes: Any) -> str:
        with pytest.raises(ModelError) as caught:
            spec_of_config({k: v for k, v in (config | changes).items() if v != "absent"})
        return str(caught.value)

    assert "num_key_value_heads must equal" in refusal(num_key_value_heads=2)
    assert "head_dim must be 8" in refusal(head_dim=16)
    assert "qk_rope_head_dim must be between" in refusal(qk_rope_head_dim=0)
    assert "attention_bias is True" in refusal(attention_bias=True)
    assert "n_group 5 does not fit n_routed_experts 12" in refusal(n_group=5)
    assert "topk_group must be between 1 and 4" in refusal(topk_group=7)
    assert "more than topk_group groups have" in refusal(num_experts_per_tok=7)
    assert "topk_method 'magic' with scoring_func 'sigmoid' is not supported" in refusal(topk_method="magic")
    assert "norm_topk_prob is not supported with" in refusal(topk_method="greedy", scoring_func="softmax")
    assert "moe_layer_freq must be 1" in refusal(moe_layer_freq=2)
    whole = spec_of_config(config | {"num_nextn_predict_layers": 1})
    assert replace(whole, name="") == replace(spec_of_config(config), name="")


def test_a_quantized_file_answers_like_its_folder(tmp_path: Path) -> None:
    case = case_of("deepseek_v3")
    write_case_gguf(tmp_path / "model.gguf", case, "Q8_0")
    found = load(tmp_path / "model.gguf", case, "native", threads=2).logits((64,))
    assert np.median(cosines(found, case)) > 0.99
