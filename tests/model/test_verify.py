"""``spola verify`` passes good files and finds each of ten faults that conversions are known to make."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from spola.cli import main as cli
from spola.core.dtype import BY_NAME
from spola.evaluate.verify import REFERENCE
from spola.evaluate.verify import verify as verify_model
from spola.formats.gguf import open_gguf
from spola.formats.gguf_write import NewTensor, write_gguf
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.quantize.write import quantize
from support.families import write_folder
from support.hf_tokenizer import folder_tokenizer
from support.loaded import case_of, convert

verify_module = importlib.import_module("spola.evaluate.verify")

Tensors = dict[str, np.ndarray]
Keys = dict[str, Any]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


def make(folder: Path, name: str) -> Path:
    """The folder of a case, and a good GGUF file of it beside the folder."""
    case = case_of(name)
    write_folder(folder / "hf", case)
    folder_tokenizer(folder / "hf", case.config["vocab_size"])
    settings = json.loads((folder / "hf" / "tokenizer_config.json").read_text())
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    with open_model(resolve_model(str(folder / "hf"))) as model:
        quantize(model, folder / "good.gguf", "F32", convert)
    return folder / "good.gguf"


def changed(good: Path, change: Callable[[Keys, Tensors], None]) -> Path:
    """The file with a fault planted."""
    with open_gguf(good) as file:
        keys = dict(file.metadata)
        tensors = {
            name: np.frombuffer(file.read(name), np.float32).reshape(entry.shape).copy()
            for name, entry in file.tensors.items()
        }
        types = dict(file.types)
    change(keys, tensors)
    bad = good.with_name("bad.gguf")
    new = [NewTensor(name, BY_NAME["F32"], v.shape, v.tobytes()) for name, v in tensors.items()]
    write_gguf(bad, keys, new, types={key: kind for key, kind in types.items() if key in keys})
    return bad


def verify(path: Path, folder: Path | None) -> tuple[int, dict[str, Any]]:
    more = [] if folder is None else ["--against", str(folder)]
    result = CliRunner().invoke(cli, ["verify", str(path), "--json", *more], standalone_mode=False)
    assert result.exception is None, result.exception
    found = json.loads(result.stdout)
    return result.return_value, {check["name"]: check for check in found["checks"]}


def unpermuted(keys: Keys, tensors: Tensors) -> None:
    """Rows of q as the folder has them, where the architecture wants pairs."""
    q = tensors["blk.0.attn_q.weight"]
    heads = keys["llama.attention.head_count"]
    pairs = q.reshape(heads, q.shape[0] // heads // 2, 2, -1)
    tensors["blk.0.attn_q.weight"] = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(q.shape))


def wrong_layout(keys: Keys, tensors: Tensors) -> None:
    """All q and k in pairs, for an architecture whose readers turn halves."""
    for name in [n for n in tensors if ".attn_q.weight" in n or ".attn_k.weight" in n]:
        rows = tensors[name]
        heads = keys["qwen2.attention.head_count" + ("_kv" if "_k." in name else "")]
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
        tensors[name] = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def doubled_bos(keys: Keys, tensors: Tensors) -> None:
    keys["tokenizer.chat_template"] = "{{ bos_token }}" + keys["tokenizer.chat_template"]


def lost_offset(keys: Keys, tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] -= 1


def swapped(keys: Keys, tensors: Tensors) -> None:
    gate, up = "blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def other_pre(keys: Keys, tensors: Tensors) -> None:
    keys["tokenizer.ggml.pre"] = "gpt-2"


def other_special(keys: Keys, tensors: Tensors) -> None:
    keys["tokenizer.ggml.tokens"] = [
        "<|changed|>" if t == "<|im_end|>" else t for t in keys["tokenizer.ggml.tokens"]
    ]


def scaled(keys: Keys, tensors: Tensors) -> None:
    tensors["blk.0.ffn_down.weight"] *= np.float32(1.02)


def no_bias(keys: Keys, tensors: Tensors) -> None:
    for name in [n for n in tensors if n.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias"))]:
        del tensors[name]


def no_window(keys: Keys, tensors: Tensors) -> None:
    keys["gemma3.attention.sliding_window"] = 0


FAULTS: list[tuple[str, str, Callable[[Keys, Tensors], None], str]] = [
    ("wrong rope layout", "qwen2", wrong_layout, "weights"),
    ("unpermuted q and k", "llama3", unpermuted, "weights"),
    ("doubled BOS", "llama3", doubled_bos, "tokenizer"),
    ("lost norm offset", "gemma2", lost_offset, "weights"),
    ("swapped gate and up", "llama3", swapped, "weights"),
    ("wrong pre-tokenizer", "llama3", other_pre, "tokenizer against the other"),
    ("changed special token", "llama3", other_special, "tokenizer against the other"),
    ("scale off by 2 %", "llama3", scaled, "weights"),
    ("missing bias", "qwen2", no_bias, "structure"),
    ("window ignored", "gemma3-small", no_window, "structure"),
]


@pytest.mark.parametrize(("fault", "name", "change", "check"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_found(
    fault: str, name: str, change: Callable[[Keys, Tensors], None], check: str, tmp_path: Path
) -> None:
    good = make(tmp_path, name)
    code, checks = verify(good, tmp_path / "hf")
    assert code == 0, checks
    code, checks = verify(changed(good, change), tmp_path / "hf")
    assert code == 1
    assert checks[check]["ok"] is False, (fault, checks)


def test_rows_that_a_folder_keeps_joined(tmp_path: Path) -> None:
    """InternLM2: wqkv in the folder, three permuted matrices in the file."""
    good = make(tmp_path, "internlm2")
    code, checks = verify(good, tmp_path / "hf")
    assert code == 0, checks
    assert checks["weights"]["ok"] is True

    def swapped(keys: Keys, tensors: Tensors) -> None:
        """Two heads of q in the wrong order, as from a wrong reading of the groups."""
        q = tensors["blk.1.attn_q.weight"]
        q[:] = q.reshape(4, 16, -1)[[0, 2, 1, 3]].reshape(q.shape)

    code, checks = verify(changed(good, swapped), tmp_path / "hf")
    assert code == 1
    assert checks["weights"]["ok"] is False


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0"])
def test_quantized_files_pass_and_a_scale_is_still_seen(target: str, tmp_path: Path) -> None:
    make(tmp_path, "gemma2")
    with open_model(resolve_model(str(tmp_path / "hf"))) as model:
        quantize(model, tmp_path / "q.gguf", target, convert)
    checks = verify(tmp_path / "q.gguf", tmp_path / "hf")[1]
    assert checks["weights"]["ok"] is True, checks
    assert checks["native against the reference"]["ok"] is True
    data = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(data | {"rms_norm_eps": 1e-3}))
    assert verify(tmp_path / "q.gguf", tmp_path / "hf")[1]["structure"]["ok"] is False


def test_a_file_alone_and_a_file_in_its_folder(tmp_path: Path) -> None:
    good = make(tmp_path, "llama3")
    code, checks = verify(good, None)
    assert code == 0
    assert checks["against the folder"]["ok"] is None
    inside = tmp_path / "hf" / "model.gguf"
    good.rename(inside)
    code, checks = verify(inside, None)
    assert (code, checks["structure"]["ok"]) == (0, True)


BACKENDS = "native against the reference"


def told(path: Path, backend: str) -> tuple[bool | None, str]:
    """What is said of the logits of ``backend`` and of the reference."""
    report = verify_model(resolve_model(str(path)), backend=backend)
    (check,) = [check for check in report.checks if check.name == BACKENDS]
    return check.ok, check.detail


def test_equal_logits_are_called_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = make(tmp_path, "llama3")
    assert told(good, REFERENCE) == (True, "the logits are equal")
    real = verify_module._logits

    def off(by: float) -> Callable[..., list[bytes]]:
        def logits(where: Any, ids: Any, options: Any) -> list[bytes]:
            rows = real(where, ids, replace(options, backend=REFERENCE))
            if options.backend == REFERENCE:
                return rows
            values = np.frombuffer(b"".join(rows), "<f4").copy()
            values[7] += by * np.abs(values).max()
            return [values.tobytes()]

        return logits

    for by, ok in ((1e-4, True), (2e-3, False), (math.nan, False)):
        monkeypatch.setattr(verify_module, "_logits", off(by))
        found = told(good, "native")
        assert found[0] is ok
        assert "equal" not in found[1]
        assert ("at most 0.001 was expected" in found[1]) is not ok
    monkeypatch.setattr(verify_module, "_logits", off(1e-4))
    assert told(good, "native") == (True, "logits within 1.0e-04 of the largest")


def test_the_report_for_people(tmp_path: Path) -> None:
    bad = changed(make(tmp_path, "llama3"), scaled)
    result = CliRunner().invoke(
        cli, ["verify", str(bad), "--against", str(tmp_path / "hf")], standalone_mode=False
    )
    assert result.return_value == 1
    assert "FAILED       weights: tensor blk.0.ffn_down.weight (F32)" in result.stdout
