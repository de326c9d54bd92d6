"""LoRA adapters against `peft`: its own files, read here, give the logits that it computed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.adapters import write_adapter
from support.families import write_folder
from support.family_gguf import write_case_gguf
from support.loaded import case_of, differ, load
from support.seeded import digest, seeded_weights

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "peft"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
TOLERANCE = 1e-4  # of a row's largest logit


def fixture(name: str, adapter: Path) -> tuple[dict[str, Any], np.ndarray]:
    """The stored case, whose adapter is written to ``adapter``, and its logits [64, columns]."""
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    factors = seeded_weights(raw["tensors"], raw["seed"], 1.0, 1.0)
    assert digest(factors) == raw["weights_sha256"]
    write_adapter(adapter, factors)
    (adapter / "adapter_config.json").write_text(json.dumps(raw["adapter_config"]))
    logits = np.frombuffer(base64.b64decode(raw["logits"]), "<f4")
    return raw, logits.reshape(-1, len(raw["columns"]))


@pytest.mark.parametrize("kind", ["reference", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_peft(name: str, kind: str, tmp_path: Path) -> None:
    raw, wanted = fixture(name, tmp_path / "adapter")
    case = case_of(raw["family"])
    write_folder(tmp_path / "base", case)
    loaded = load(tmp_path / "base", case, kind, adapters={"a": tmp_path / "adapter"})
    found = [loaded.logits(chunks, "a") for chunks in ((64,), (11, 1, 30))]
    for logits in found:
        assert differ(logits[:, raw["columns"]], wanted) < TOLERANCE
    plain = loaded.logits((64,))
    assert differ(plain[:, raw["columns"]], wanted) > 2e-2  # the adapter does something


@pytest.mark.parametrize("name", ["gpt2", "llama3", "phi3-rslora"])
def test_on_a_gguf_file(name: str, tmp_path: Path) -> None:
    raw, wanted = fixture(name, tmp_path / "adapter")
    case = case_of(raw["family"])
    write_case_gguf(tmp_path / "base.gguf", case)
    loaded = load(tmp_path / "base.gguf", case, "native", adapters={"a": tmp_path / "adapter"})
    assert differ(loaded.logits((64,), "a")[:, raw["columns"]], wanted) < TOLERANCE


def test_there_are_cases() -> None:
    assert len(NAMES) >= 5
