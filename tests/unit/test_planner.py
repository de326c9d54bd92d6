"""The planner: the text-books' examples, plans from headers and configurations, refusals with ways out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spola.core.errors import ConfigError, ModelError
from spola.planner import textbook
from spola.planner.explain import explained, summary
from spola.planner.hardware import HARDWARE, find_hardware
from spola.planner.host import table_host
from spola.planner.model import PlanModel, open_plan_model, with_weights
from spola.planner.plan import Goal, Plan, make_plan
from spola.planner.recommend import recommend, refusal, ways_out
from spola.planner.speed import Speed
from spola.runtime.limits import MachineLimits
from spola.spec.cost import weight_bytes
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from support.cli import spola
from support.tiny import Tiny, hf_config, write_tiny_gguf, write_tiny_safetensors

LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
}


def folder(path: Path, config: dict[str, object]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def plan_on(
    name: str, hardware: str, goal: Goal, weights: str | None = None, memory: int | None = None
) -> Plan:
    model = open_plan_model(name, weights)
    return make_plan(model, kv_groups(model.spec), table_host(hardware, memory), goal)


@pytest.mark.parametrize(("bits", "gb"), [(32, 28), (16, 14), (8, 7), (4, 3.5)])
def test_seven_billion_weights(bits: int, gb: float) -> None:
    assert textbook.weight_bytes(7e9, bits) == gb * 1e9


def test_kv_cache_of_the_text_books() -> None:
    per_token = textbook.kv_bytes_per_token(32, 32, 128, 2)
    assert per_token == 524_288
    assert textbook.kv_bytes(per_token, 4096) == 2 * 2**30
    assert textbook.kv_bytes(per_token, 4096, 8) == 16 * 2**30


def test_the_bandwidth_limit_of_the_text_books() -> None:
    assert textbook.decode_tok_s(14e9, 1000e9) == pytest.approx(71.4, abs=0.1)
    assert textbook.decode_tok_s(14e9, 1000e9, batch=4) == pytest.approx(285.7, abs=0.1)
    assert textbook.arithmetic_intensity(1, 2) == 1.0
    assert textbook.ridge(312e12, 2039e9) == pytest.approx(153, abs=0.5)
    assert textbook.prefill_s(7e9, 1000, 140e12) == pytest.approx(0.1)
    assert textbook.latency_s(0.2, 0.01, 101) == pytest.approx(1.2)
    assert textbook.littles_law(4, 2.5) == 10


def test_a_real_shape_comes_out_as_the_text_book_says(tmp_path: Path) -> None:
    name = folder(tmp_path / "llama2-7b", LLAMA_7B)
    figures = plan_on(name, "a100-80gb", Goal(context=4096, concurrency=8)).figures
    assert figures["parameters"] == 6_738_415_616
    assert figures["weights_bytes"] == 2 * 6_738_415_616
    assert figures["kv_bytes_per_token"] == 524_288
    assert figures["kv_bytes_per_request"] == 2 * 2**30
    assert figures["memory"]["kv"] == 16 * 2**30
    assert figures["fits"]
    one = plan_on(name, "a100-80gb", Goal(context=64)).figures
    assert one["decode_tok_s_bound"] == pytest.approx(2039e9 / (2 * 6.607e9), rel=0.01)
    for weights, gb in (("F32", 26.95), ("Q8_0", 7.16), ("Q4_0", 3.79)):
        planned = plan_on(name, "a100-80gb", Goal(), weights)
        assert planned.figures["weights_bytes"] == pytest.approx(gb * 1e9, rel=0.005)


def test_where_neither_weights_nor_cache_alone_can_be_smaller_both_are(tmp_path: Path) -> None:
    name = folder(tmp_path / "llama2-7b", LLAMA_7B)
    plan = plan_on(name, "a100-80gb", Goal(context=4096), "Q4_0", memory=4_000_000_000)
    assert not plan.figures["fits"]
    ways = ways_out(plan)
    assert len(ways) == 3
    both = re.fullmatch(r"weights in (\w+) with --kv-dtype int8 and --context (\d+)", ways[0])
    assert both is not None
    smaller = open_plan_model(name, both[1])
    goal = Goal(context=int(both[2]))
    host = table_host("a100-80gb", 4_000_000_000)
    assert make_plan(smaller, kv_groups(smaller.spec, "int8", "int8"), host, goal).figures["fits"]


def test_grouped_heads_need_a_quarter(tmp_path: Path) -> None:
    name = folder(tmp_path / "gqa", LLAMA_7B | {"num_key_value_heads": 8})
    assert plan_on(name, "a100-80gb", Goal()).figures["kv_bytes_per_token"] == 524_288 // 4


def test_header_and_folder_and_configuration_alone_agree(tmp_path: Path) -> None:
    tiny = Tiny(dtype="F32")
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny)
    write_tiny_safetensors(tmp_path / "hf", tiny)
    alone = folder(tmp_path / "alone", hf_config(tiny))
    models = [open_plan_model(str(tmp_path / "tiny.gguf")), open_plan_model(str(tmp_path / "hf"))]
    models.append(open_plan_model(alone))
    assert len({m.parameters for m in models}) == 1
    assert {weight_bytes(m.spec, m.dtypes) for m in models} == {4 * models[0].parameters}
    assert "config.json of alone" in models[2].origin
    assert open_plan_model(f"{alone}/config.json").spec == models[2].spec
    bad = folder(tmp_path / "bad", hf_config(tiny) | {"torch_dtype": "float8"})
    with pytest.raises(ModelError, match="torch_dtype 'float8'"):
        open_plan_model(bad)


def test_other_weights_change_matrices_only(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", Tiny(dtype="F16"))
    model = with_weights(open_plan_model(str(tmp_path / "tiny.gguf")), "q4_0")
    kinds = {info.role: model.dtypes[info.name] for info in manifest(model.spec)}
    assert kinds["linear"] == kinds["embedding"] == "Q4_0"
    assert kinds["norm"] == "F32"
    # Rows of 64 are no whole block of 256.
    assert set(with_weights(model, "Q4_K").dtypes.values()) == {"Q8_0", "F32"}
    assert with_weights(model, "fp16").dtypes["embedding.weight"] == "F16"
    with pytest.raises(ConfigError, match="--weights 'int3'"):
        with_weights(model, "int3")


def test_what_does_not_fit_is_refused_with_three_ways_out_that_work(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    plan = plan_on(name, "a100-40gb", Goal(context=4096, concurrency=20))
    assert not plan.figures["fits"]
    text = refusal(plan)
    for number in ("56.4 GB", "13.5 GB", "42.9 GB", "36.0 GB"):
        assert number in text
    longest, most = plan.figures["max_context"], plan.figures["max_concurrency"]
    assert f"--context {longest} for 20" in text
    assert f"--concurrency {most} at 4096" in text
    assert text.count("; or ") == 2
    assert plan_on(name, "a100-40gb", Goal(context=longest, concurrency=20)).figures["fits"]
    assert not plan_on(name, "a100-40gb", Goal(context=longest + 32, concurrency=20)).figures["fits"]
    assert plan_on(name, "a100-40gb", Goal(context=4096, concurrency=most)).figures["fits"]
    assert not plan_on(name, "a100-40gb", Goal(context=4096, concurrency=most + 1)).figures["fits"]


def test_a_quantization_is_recommended_that_fits(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    plan = plan_on(name, "t4", Goal(context=4096, concurrency=2), memory=12 * 10**9)
    assert not plan.figures["fits"]
    advice = recommend(plan)
    rows = {row["weights"]: row for row in advice["types"]}
    # An int8 cache costs less than the next smaller weights, and is tried before them.
    assert advice["weights"] == next(kind for kind, row in rows.items() if row["fits_int8_kv"]) == "Q8_0"
    assert (advice["kv_dtype"], rows["Q8_0"]["fits"], rows["Q6_K"]["fits"]) == ("int8", False, True)
    assert not rows["F16"]["fits_int8_kv"]
    sizes = [row["weights_bytes"] for row in advice["types"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "command" in recommend(plan_on(name, "a100-80gb", Goal()))


def test_an_int8_cache_is_recommended_where_it_makes_the_goal_fit(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    plan = plan_on(name, "a100-40gb", Goal(context=4096, concurrency=16))
    assert not plan.figures["fits"]
    advice = recommend(plan)
    assert (advice["weights"], advice["kv_dtype"]) == ("as stored", "int8")
    assert "--kv-dtype int8" in advice["command"]
    assert "--kv-dtype int8" in refusal(plan)
    size = int(advice["command"].split("--kv-memory ")[1].split()[0])
    assert size < plan.memory.kv * 0.6
    fitting = recommend(plan_on(name, "a100-40gb", Goal(context=4096, concurrency=4)))
    assert fitting["kv_dtype"] == "f16"
    assert "--kv-dtype" not in fitting["command"]


def test_the_command_serves_what_was_planned(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    model, host = open_plan_model(name, "q8_0"), table_host("a100-80gb", None)
    command = recommend(make_plan(model, kv_groups(model.spec, "int8", "f16"), host, Goal()), True)["command"]
    assert " --weights q8_0 " in command
    assert command.endswith("--kv-dtype int8,f16 --precise")
    # What no server makes while loading has no command.
    model = open_plan_model(name, "q5_k")
    assert "command" not in recommend(make_plan(model, kv_groups(model.spec), host, Goal()))


def test_the_batch_at_which_decode_turns_compute_bound(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B | {"num_key_value_heads": 4})
    figures = plan_on(name, "a100-80gb", Goal(context=64)).figures
    batch = figures["compute_bound_batch"]
    # Without KV it would be the ridge: 2 operations for each weight of 2 bytes.
    assert figures["ridge"] <= batch < 1.3 * figures["ridge"]
    never = plan_on(folder(tmp_path / "n", LLAMA_7B), "a100-80gb", Goal(context=4096)).figures
    assert never["compute_bound_batch"] is None


def test_a_load_follows_littles_law(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    goal = Goal(context=2048, concurrency=4, rate=2.0, prompt=512, output=128)
    load = plan_on(name, "a100-80gb", goal).figures["load"]
    assert load["stable"]
    assert load["decoding"] == pytest.approx(2.0 * 128 * load["tpot_s_at_rate"], rel=0.02)
    assert load["latency_s"] == pytest.approx(load["ttft_s"] + load["tpot_s"] * 127)
    assert load["tpot_s_at_rate"] > load["tpot_s"]
    assert not plan_on(name, "a100-80gb", replace(goal, rate=1000.0)).figures["load"]["stable"]
    with pytest.raises(ConfigError, match="exceed"):
        plan_on(name, "a100-80gb", replace(goal, prompt=4000, output=1000))


def test_the_cost_of_a_million_tokens(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    figures = plan_on(name, "a100-80gb", Goal(context=64, cost_per_hour=3.6)).figures
    assert figures["cost"]["per_million_output_tokens"] == pytest.approx(
        1e-3 * 1e6 / figures["decode_tok_s_bound"]
    )


def test_figures_without_a_published_peak_are_left_out(tmp_path: Path) -> None:
    figures = plan_on(folder(tmp_path / "m", LLAMA_7B), "m4-max", Goal(prompt=64)).figures
    assert figures["prefill_tok_s_bound"] is None
    assert figures["ridge"] is None
    assert figures["decode_tok_s_bound"] > 0
    assert all(row.source.startswith("http") for row in HARDWARE)
    assert find_hardware("RTX 4090").name == "rtx-4090"
    with pytest.raises(ConfigError, match="bandwidth is not published"):
        find_hardware("spyre")
    with pytest.raises(ConfigError, match="a100-40gb"):
        find_hardware("abacus")


def test_every_formula_has_its_numbers(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    plan = plan_on(name, "a100-80gb", Goal(context=4096, rate=1.0, prompt=64, output=8, cost_per_hour=1.0))
    text = "\n".join([*summary(plan), *explained(plan)])
    assert "32 x 32 x (128 x 2 + 128 x 2) = 32 x 32 x (256 + 256) = 524,288 bytes" in text
    assert f"{plan.figures['max_concurrency']}" in text
    assert "Little's law" in text
    assert "fits" in text


def test_an_int8_cache_counts_its_scales(tmp_path: Path) -> None:
    model = open_plan_model(folder(tmp_path / "m", LLAMA_7B))
    groups = kv_groups(model.spec, "int8", "f16")
    plan = make_plan(model, groups, table_host("a100-80gb"), Goal())
    assert plan.figures["kv_bytes_per_token"] == 32 * 32 * (128 + 4 * 2 + 256)
    assert "(128 x 1 + 4 scales x 2 + 128 x 2)" in "\n".join(explained(plan))


def test_speed_of_a_step_follows_its_work(tmp_path: Path) -> None:
    model: PlanModel = open_plan_model(folder(tmp_path / "m", LLAMA_7B), "Q4_0")
    limits = MachineLimits("x", 30e9, {"f32": 2e11, "a8": 8e11, "a16": 4e11})
    rates = {"Q4_0": {8: 2e11, 64: 2.2e11}, "F16": {8: 4e10, 64: 6e10}}
    speed = Speed(model.spec, model.dtypes, kv_groups(model.spec), limits, rates, 2, 1e-4, 1e-5)
    one = speed.decode(1, 100)
    assert one > weight_bytes(model.spec, model.dtypes) / 30e9
    assert one < speed.decode(8, 100) < 8 * one
    assert speed.decode(1, 4000) > one
    assert speed.prefill(512, 512) < speed.prefill(512, 64)
    assert speed.prefill(1024, 512) > 2 * speed.prefill(512, 512)
    cached = replace(limits, caches={8 << 30: 60e9})
    assert replace(limits, caches={64 << 20: 90e9}).read_of(64 << 20) == 90e9
    assert 30e9 < replace(limits, caches={64 << 20: 90e9}).read_of(200 << 20) < 90e9
    assert replace(limits, caches={64 << 20: 90e9}).read_of(1 << 40) == 30e9
    assert cached.read_of(8 << 30) == 60e9
    faster = replace(speed, limits=replace(limits, read=60e9))
    assert one / 2 < faster.decode(1, 100) < 0.65 * one


def test_the_command(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", LLAMA_7B)
    done = spola("plan", name, "--hardware", "a100-80gb", "--context", "2048", "--concurrency", "2", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    wanted = {"weights_bytes", "kv_bytes_per_token", "max_concurrency", "max_context", "decode_tok_s_bound"}
    assert wanted | {"prefill_tok_s_bound", "recommended"} <= set(figures)
    command = figures["recommended"]["command"]
    assert command.startswith(f"spola serve -m {name} --max-model-len 2048 --max-seqs 2 --kv-memory ")
    text = spola("plan", name, "--hardware", "t4", "--concurrency", "64", "--explain")
    assert text.returncode == 1
    assert "does NOT fit" in text.stdout
    assert "Would fit" in text.stderr
    for args in (("--hardware", "x"), ("--hardware", "t4", "--threads", "2"), ("--kv-dtype", "f3")):
        assert spola("plan", name, *args).returncode == 2
    assert spola("plan", name, "--hardware", "t4", "--context", "5000").returncode == 1
    assert "no such file" in spola("plan", "no/such/thing/at/all").stderr
