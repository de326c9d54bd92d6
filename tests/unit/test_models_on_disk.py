"""Models on this disk: the hub's cache, Ollama's store, LM Studio's folder; and the table of names."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spola.core.errors import ConfigError
from spola.load import names
from spola.load.resolve import models_found, resolve_model
from spola.planner import shelf
from spola.planner.host import Here
from spola.runtime.limits import MachineLimits
from spola.runtime.machine import probe
from spola.spec.mixes import mix_types
from support.cli import spola

DIGEST = "sha256:" + "a" * 64
COMMITS = ("1" * 40, "2" * 40)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def ollama(
    store: Path, manifest: Any, blob: bytes | None, place: str = "library/tiny/latest", digest: str = DIGEST
) -> None:
    where = store / "manifests" / (place if place.startswith("hf.co") else f"registry.ollama.ai/{place}")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    if blob is not None:
        (store / "blobs").mkdir(exist_ok=True)
        (store / "blobs" / digest.replace(":", "-")).write_bytes(blob)


def layers(*kinds: str, digest: str = DIGEST) -> dict[str, Any]:
    return {"layers": [{"mediaType": f"application/vnd.ollama.image.{k}", "digest": digest} for k in kinds]}


def snapshot(home: Path, commit: str, files: dict[str, bytes], name: str = "org--Tiny-GGUF") -> Path:
    """A repository of the hub's cache, with blobs and links as the library makes them."""
    base = home / "cache/huggingface/hub" / f"models--{name}"
    for path, data in files.items():
        blob = base / "blobs" / f"{hash((commit, path)) & (1 << 60) - 1:064x}"
        link = base / "snapshots" / commit / path
        for folder in (blob.parent, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return base


def test_ollama_runs_and_is_listed(home: Path, tiny_gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home / ".ollama/models"
    ollama(store, layers("model", "template", "params"), tiny_gguf)
    ollama(store, layers("model"), tiny_gguf, "someone/other/1b")
    ollama(store, layers("model", "projector"), tiny_gguf, "hf.co/org/Tiny-GGUF/Q4_K_M")
    for name in (
        "ollama:tiny",
        "ollama:tiny:latest",
        "ollama:someone/other:1b",
        "ollama:hf.co/org/Tiny-GGUF:Q4_K_M",
    ):
        assert resolve_model(name).path == store / "blobs" / DIGEST.replace(":", "-"), name
    assert "its projector is not used" in resolve_model("ollama:hf.co/org/Tiny-GGUF:Q4_K_M").note
    found = [where.name for where in models_found()]
    assert {"ollama:tiny:latest", "ollama:someone/other:1b", "ollama:hf.co/org/Tiny-GGUF:Q4_K_M"} <= set(
        found
    )
    assert all(resolve_model(name) for name in found)
    run = spola("run", "-m", "ollama:tiny", "--raw", "-n", "2", "the", "--json")
    assert len(json.loads(run.stdout)["token_ids"]) == 2
    # Another place, named as Ollama itself is told of it.
    ollama(home / "elsewhere", layers("model"), tiny_gguf, "library/mine/latest")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert resolve_model("ollama:mine").path.parent == home / "elsewhere/blobs"
    with pytest.raises(ConfigError, match="there are: mine:latest"):
        resolve_model("ollama:tiny")


@pytest.mark.parametrize(
    ("manifest", "blob", "why"),
    [
        (layers("model"), None, "is missing; pull the model again"),
        (layers("template"), b"", "names 0 model files"),
        (layers("model", "model"), b"", "names 2 model files"),
        (layers("model", digest="sha256:../../etc/passwd"), b"", "names no SHA-256"),
        (layers("model", digest="sha256:" + "A" * 64), b"", "names no SHA-256"),
        ({"layers": 7}, b"", "names 0 model files"),
        ("{", b"", "is no valid JSON"),
        ("[]", b"", "holds no JSON object"),
    ],
)
def test_broken_stores_of_ollama(home: Path, manifest: Any, blob: bytes | None, why: str) -> None:
    ollama(home / ".ollama/models", manifest, blob)
    with pytest.raises(ConfigError, match=why):
        resolve_model("ollama:tiny")
    assert not [where for where in models_found() if where.name.startswith("ollama")]


@pytest.mark.parametrize(
    "name", ["../../x", "a/../b", "", "/etc/passwd", "a/b/c/d", "tiny:../x", "tiny:", "x\ny"]
)
def test_names_of_ollama_stay_in_its_store(home: Path, name: str) -> None:
    secret = home / "x"
    secret.write_text(json.dumps(layers("model")))
    with pytest.raises(ConfigError, match=r"is no name|is not in Ollama|no name of a model"):
        resolve_model(f"ollama:{name}")


def test_lm_studio(home: Path, tiny_gguf: bytes) -> None:
    for place in (home / ".lmstudio/models", home / "moved/models"):
        folder = place / "pub/Tiny-GGUF"
        folder.mkdir(parents=True)
        (folder / f"{place.parent.name.strip('.')}-Q4_K_M.gguf").write_bytes(tiny_gguf)
        (folder / "mmproj-model.gguf").write_bytes(b"projector")
    found = [where.name for where in models_found()]
    assert "pub/Tiny-GGUF:lmstudio-Q4_K_M" in found
    assert resolve_model("pub/Tiny-GGUF").path == home / ".lmstudio/models/pub/Tiny-GGUF/lmstudio-Q4_K_M.gguf"
    # The file that says where else its home is.
    (home / ".lmstudio-home-pointer").write_text(f"{home}/moved\n")
    assert resolve_model("pub/Tiny-GGUF:moved-Q4_K_M").path.parent == home / "moved/models/pub/Tiny-GGUF"
    assert all(resolve_model(where.name).path == where.path for where in models_found())


def test_older_snapshots_of_the_hub_count_too(home: Path, tiny_gguf: bytes) -> None:
    base = snapshot(home, COMMITS[0], {"m-Q8_0.gguf": tiny_gguf, "m-Q4_K_M.gguf": tiny_gguf})
    snapshot(home, COMMITS[1], {"m-Q4_K_M.gguf": tiny_gguf + b"new"})
    (base / "refs").mkdir()
    (base / "refs/main").write_text(COMMITS[1])
    assert resolve_model("org/Tiny-GGUF:Q4_K_M").path.parent.name == COMMITS[1]
    assert resolve_model("org/Tiny-GGUF:Q8_0").path.parent.name == COMMITS[0]
    names_found = [where.name for where in models_found() if where.name.startswith("org")]
    assert names_found == ["org/Tiny-GGUF:m-Q4_K_M", "org/Tiny-GGUF:m-Q8_0"]
    # A link whose blob is gone is no model.
    (base / "snapshots" / COMMITS[0] / "m-Q8_0.gguf").resolve().unlink()
    with pytest.raises(ConfigError, match="is not on this disk; get it with `spola pull org/Tiny-GGUF:Q8_0`"):
        resolve_model("org/Tiny-GGUF:Q8_0")


def test_sizes_of_the_table_follow_from_the_shapes() -> None:
    """A file is its tensors, to the byte, and a header: the vocabulary, alike in models of one tokenizer."""
    headers: dict[int, list[int]] = {}
    for row in names.known_models():
        header = row.bytes - row.weights_bytes()
        assert 5e5 < header < 9e6, row.name
        headers.setdefault(row.shape["vocab_size"], []).append(header)
    assert len(headers) >= 8
    for sizes in headers.values():
        assert max(sizes) - min(sizes) < 20_000, headers


def test_the_table_is_in_order_and_refuses_unknown_mixes() -> None:
    rows = names.known_models()
    assert len(rows) >= 20
    assert len({row.name for row in rows}) == len(rows)
    assert [row.bytes for row in rows] == sorted(row.bytes for row in rows)
    assert 0.3e9 < min(row.parameters for row in rows) < max(row.parameters for row in rows) < 9e9
    with pytest.raises(ConfigError, match="Q4_K_M, Q8_0"):
        mix_types(rows[0].spec(), "Q3_K_L")
    # A near miss is helped.
    with pytest.raises(ConfigError, match=r"did you mean llama3\.2-1b\?"):
        resolve_model("llama3.2-1")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a machine, which would take seconds to measure."""
    limits = MachineLimits("avx2", 30e9, {"f32": 2e11, "a8": 8e11, "a16": 4e11})
    here = Here(replace(probe(), memory_available=16 << 30, memory_limit=16 << 30), 2, limits, {}, 1e-4, 1e-5)
    monkeypatch.setattr(shelf, "measure_here", lambda types, say: here)


@pytest.mark.usefixtures("measured")
def test_models_says_what_to_expect(home: Path, tiny_gguf: bytes) -> None:
    ollama(home / ".ollama/models", layers("model"), tiny_gguf)
    snapshot(home, COMMITS[0], {"bad-Q4_0.gguf": b"no model"})
    listed = json.loads(spola("models", "--json").stdout)
    assert listed["why_no_prediction"] == ""
    args = ("--hardware", "rtx-4090", "--context", "4096", "--json")
    plan = json.loads(spola("plan", "qwen3-4b", *args).stdout)
    assert (listed["prompt_tokens"], listed["context_tokens"]) == (plan["prefill_tokens"], plan["context"])
    rows = {row["name"]: row for row in listed["models"]}
    tiny = rows["ollama:tiny:latest"]
    assert (tiny["on_disk"], tiny["size"], tiny["fits"], tiny["problem"]) == (True, len(tiny_gguf), True, "")
    bad = rows["org/Tiny-GGUF:bad-Q4_0"]
    assert "bad-Q4_0.gguf" in bad["problem"]
    assert bad["fits"] is None
    others = [row for row in listed["models"] if not row["on_disk"]]
    assert [row["name"] for row in others] == [row.name for row in names.known_models()]
    for row in others:
        assert math.isfinite(row["ttft_s"])
        assert row["memory"] > row["size"] * 0.9
    # A larger model of one kind is slower in both.
    small, large = rows["qwen3-0.6b"], rows["qwen3-8b"]
    assert (small["fits"], large["fits"]) == (True, True)
    # The memory's bandwidth is what decoding waits for: somewhat below it.
    assert 0.5 * 30e9 / large["size"] < large["decode_tok_s"] < 30e9 / large["size"] * 1.1
    assert small["decode_tok_s"] > large["decode_tok_s"]
    assert small["ttft_s"] < large["ttft_s"]
    text = spola("models")
    assert "does not run: " in text.stdout
    assert "predicted for" in text.stderr


def test_models_without_figures_of_the_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(types: object, say: object) -> None:
        raise ConfigError("the native backend is not built here, and it measures the machine")

    monkeypatch.setattr(shelf, "measure_here", fail)
    done = spola("models")
    assert done.returncode == 0
    assert "qwen3-0.6b" in done.stdout
    assert "no prediction: the native backend is not built here" in done.stderr


def test_a_short_name_is_planned_before_it_is_here() -> None:
    figures = json.loads(spola("plan", "llama3.2-1b", "--hardware", "rtx-4090", "--json").stdout)
    assert figures["parameters"] == 1235814400
    assert "the table of short names" in figures["origin"]
