"""The experiments that are not about batching modes run, and their figures are what they say."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spola import LLM, SamplingParams
from spola.bench.exchange import Sample
from spola.bench.http import Target
from support.tiny import Tiny, write_tiny_gguf

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "experiments"


def main_of(name: str):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def test_paging_holds_more_than_twice_the_sequences_in_the_same_bytes(tmp_path: Path, capsys) -> None:
    options = ["--requests", "60", "--kv-memory", str(64 << 20), "--max-model-len", "1024"]
    assert main_of("paging")(["-o", str(tmp_path), *options]) == 0
    result = json.loads((tmp_path / "paging.json").read_text())
    paged, contiguous = result["paged"], result["contiguous"]
    assert paged["kv_bytes"] == contiguous["kv_bytes"] <= 64 << 20
    assert result["ratio"] > 2
    assert contiguous["most"] == contiguous["kv_bytes"] // (1024 * 23040)
    assert paged["wasted_share"] < 0.2 < contiguous["wasted_share"]
    ElementTree.parse(tmp_path / "paging.svg")
    assert json.loads(capsys.readouterr().out)["ratio"] == result["ratio"]


def test_speculation_compares_equal_answers(tmp_path: Path, capsys) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model, Tiny(context=2048))
    out = tmp_path / "speculation.json"
    assert main_of("speculation")(["-m", str(model), "-o", str(out), "--rounds", "1", "--tokens", "12"]) == 0
    result = json.loads(out.read_text())
    for text in ("copy", "prose"):
        assert set(result[text]) == {"off", "ngram", "suffix"}
        assert result[text]["off"]["over_off"] == 1
        assert result[text]["ngram"]["tok_s"] > 0
    assert result["copy"]["off"]["drafted_so_far"] == 0


def test_a_made_folder_holds_the_weights_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "tiny-BF16.gguf"
    source = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, Tiny())
    options = ["--shape", "tiny", "--type", "BF16", "--tokenizer-from", str(source), str(file)]
    subprocess.run([sys.executable, str(FOLDER.parent / "make_gguf.py"), *options], check=True)
    folder = runpy.run_path(str(FOLDER / "load_times.py"))["folder_of"](file)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3, ignore_eos=True)

    def said(model: Path) -> tuple[Sequence[int], float]:
        with LLM(str(model), backend="reference", max_model_len=64) as llm:
            choice = llm.generate([[5, 6, 7]], params)[0].outputs[0]
            return choice.token_ids, choice.cumulative_logprob

    (ids, logprob), (other_ids, other_logprob) = said(file), said(folder)
    assert ids == other_ids
    assert logprob == pytest.approx(other_logprob, abs=1e-4)  # a head's values lie in another order


def rows(part: str, scale: float) -> list[dict]:
    times = {name: {"p50": scale, "p95": 2 * scale} for name in ("ttft_ms", "tpot_ms", "itl_ms")}
    mine = {"part": part, "server": "spola", "seed": 0, "output_tok_s": 300.0, **times}
    return [mine, {**mine, "server": "llama-server", "output_tok_s": 100.0}]


def test_the_report_of_a_comparison_is_of_medians(tmp_path: Path, capsys) -> None:
    store = tmp_path / "against.jsonl"
    lines = [*rows("shared16", 1.0), *rows("shared16", 3.0), *rows("shared16", 50.0), *rows("alone1", 2.0)]
    prefix = {"cold_ttft_ms": 100.0, "warm_ttft_ms": 2.0, "same_text": True}
    lines.append({"part": "prefix", "server": "spola", **prefix})
    store.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main_of("against")(["report", "--store", str(store)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shared16"]["runs"] == 3
    assert found["shared16"]["ttft_ms.p95"] == {"spola": 6.0, "llama-server": 6.0}
    assert found["shared16"]["output_tok_s"] == {"spola": 300.0, "llama-server": 100.0}
    assert found["shared16"]["spread"]["ttft_ms.p95"]["spola"] == [2.0, 100.0]
    assert found["prefix"]["ratio"] == 50.0
    assert found["prefix"]["same_text"] is True
    ElementTree.parse(tmp_path / "against.svg")
    with pytest.raises(SystemExit):
        main_of("against")(["run", "--parts", "nonsense", "-m", "x.gguf"])
    with pytest.raises(SystemExit):
        main_of("against")(["run", "--repeat", "0", "-m", "x.gguf"])


def test_a_comparison_is_repeated_with_new_requests_server_by_server(tmp_path: Path, monkeypatch) -> None:
    main, asked = main_of("against"), []

    def measure(part: str, server: str, args: object, seed: int) -> dict:
        asked.append((part, server, seed))
        return {"part": part, "server": server, "seed": seed}

    monkeypatch.setitem(main.__globals__, "measure", measure)
    store = tmp_path / "against.jsonl"
    command = ["run", "-m", "x.gguf", "--store", str(store), "--parts", "alone1,prefix"]
    assert main([*command, "--repeat", "2"]) == 0
    assert main(command) == 0
    one = [("alone1", "spola"), ("alone1", "llama-server"), ("prefix", "spola")]
    assert asked == [(*pair, seed) for seed in range(3) for pair in one]
    assert len(store.read_text().splitlines()) == 9


@pytest.mark.parametrize(("warm", "same"), [("abc", True), ("abd", False)])
def test_the_answers_from_the_cache_are_compared(warm: str, same: bool, monkeypatch) -> None:
    main, texts = main_of("against"), ["abc", "abc", warm, "abc", "abc", "abc"]

    async def ask(pool: object, call: object, now: float) -> Sample:
        return Sample(now, events=array("d", [now + len(texts)]), text=texts.pop(0), cached=1984)

    monkeypatch.setitem(main.__globals__, "ask", ask)
    found = asyncio.run(main.__globals__["twice"](Target("http://127.0.0.1:1/v1"), 0))
    assert found["same_text"] is same
    assert found["cold_ttft_ms"] == 6000.0
    assert found["warm_ttft_ms"] == 3000.0
    assert found["cached_tokens"] == 1984
