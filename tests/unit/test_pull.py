"""``spola pull`` against a hub made here: choosing, redirects, resuming, hashes, refusals; and what
is found later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spola.core.errors import ConfigError
from spola.load.pick import first_shards, pick, shards_of
from support.fake_hub import FakeHub, fake_hub
from support.hf_tokenizer import write_tokenizer
from support.tiny import Tiny, write_tiny_gguf, write_tiny_safetensors

REPOSITORY = "some-org/Tiny-GGUF"


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, Tiny())
    return path.read_bytes()


@pytest.fixture(autouse=True)
def clean(hub: FakeHub, model: bytes) -> None:
    hub.repositories = {
        REPOSITORY: {
            "README.md": b"hello",
            "tiny-Q4_K_M.gguf": model,
            "tiny-Q8_0.gguf": model + bytes(32),
            "mmproj-tiny.gguf": b"projector",
        }
    }
    hub.cut, hub.lie, hub.status = None, False, 200
    hub.requests.clear()


def spola(hub: FakeHub, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the library reads its environment once."""
    places = {"HOME": str(home), "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(home / "cache")}
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    names = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    return subprocess.run(
        [sys.executable, "-m", "spola", *args],
        env=names | places | settings | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_a_file_is_picked_fetched_checked_and_found(hub: FakeHub, model: bytes, tmp_path: Path) -> None:
    done = spola(hub, tmp_path, "pull", REPOSITORY, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["path"]).read_bytes() == model
    assert "tiny-Q4_K_M.gguf" in done.stderr
    assert "SHA-256 checked" in done.stderr
    # Nothing is fetched twice, and the name runs the model.
    hub.requests.clear()
    again = spola(hub, tmp_path, "pull", f"{REPOSITORY}:Q4_K_M")
    assert again.returncode == 0
    assert not [row for row in hub.requests if row[1].startswith("/cdn/")]
    answer = spola(hub, tmp_path, "run", "-m", REPOSITORY, "--raw", "-n", "3", "the", "--json")
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["token_ids"]) == 3
    listed = json.loads(spola(hub, tmp_path, "models", "--json").stdout)["models"]
    names = [row["name"] for row in listed if row["on_disk"]]
    assert f"{REPOSITORY}:tiny-Q4_K_M" in names


def test_an_interrupted_download_goes_on_where_it_was(hub: FakeHub, tmp_path: Path) -> None:
    data = bytes(range(256)) * (25 << 12)  # the library keeps what it has every ten megabytes
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": data}
    hub.cut = 15 << 20
    done = spola(hub, tmp_path, "pull", REPOSITORY, "--json")
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["path"]).read_bytes() == data
    ranges = [row[2] for row in hub.requests if row[0] == "GET" and row[1].startswith("/cdn/")]
    assert len(ranges) == 2
    assert int((ranges[1] or "bytes=0-").removeprefix("bytes=").split("-")[0]) >= 10 << 20


def test_a_wrong_hash_is_refused_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.lie = True
    done = spola(hub, tmp_path, "pull", REPOSITORY)
    assert done.returncode == 1
    assert "has not the SHA-256" in last(done.stderr)
    assert not list((tmp_path / "hf").rglob("*.gguf"))
    hub.lie = False
    assert spola(hub, tmp_path, "pull", REPOSITORY).returncode == 0


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "no such model, or it is private"),
        (404, "no such model"),
        (403, "terms must be accepted"),
        (500, "HTTP 500"),
    ],
)
def test_refusals_are_one_line(hub: FakeHub, status: int, why: str, tmp_path: Path) -> None:
    hub.status = status
    done = spola(hub, tmp_path, "pull", REPOSITORY)
    assert done.returncode == 1
    assert why in last(done.stderr)
    assert "Traceback" not in done.stderr


def test_without_a_network_and_offline(hub: FakeHub, tmp_path: Path) -> None:
    done = spola(hub, tmp_path, "pull", REPOSITORY, HF_ENDPOINT="http://127.0.0.1:9")
    assert (done.returncode, "cannot be reached" in last(done.stderr)) == (1, True)
    done = spola(hub, tmp_path, "pull", REPOSITORY, HF_HUB_OFFLINE="1")
    assert (done.returncode, "HF_HUB_OFFLINE is set" in last(done.stderr)) == (1, True)
    missing = spola(hub, tmp_path, "run", "-m", REPOSITORY, "x")
    assert f"get it with `spola pull {REPOSITORY}`" in last(missing.stderr)


def test_a_folder_without_gguf_comes_whole(hub: FakeHub, tmp_path: Path) -> None:
    made = write_tiny_safetensors(tmp_path / "made", Tiny(tied=True))
    write_tokenizer(tmp_path / "made", made.metadata)
    hub.repositories["org/Folder"] = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    hub.repositories["org/Folder"]["pytorch_model.bin"] = b"pickled" * 999
    done = spola(hub, tmp_path, "pull", "org/Folder", "--json")
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["path"])
    assert {path.name for path in folder.iterdir()} == set(hub.repositories["org/Folder"]) - {
        "pytorch_model.bin"
    }
    assert spola(hub, tmp_path, "run", "-m", "org/Folder", "--raw", "-n", "2", "the").returncode == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nonsense", "is no short name"),
        (f"{REPOSITORY}:Q2_K", "0 files fit; there are tiny-Q4_K_M.gguf"),
        ("../etc/passwd", "is no short name"),
    ],
)
def test_names_that_mean_nothing(hub: FakeHub, name: str, why: str, tmp_path: Path) -> None:
    done = spola(hub, tmp_path, "pull", name)
    assert (done.returncode, why in last(done.stderr)) == (1, True), done.stderr


def test_picking() -> None:
    files = [
        "a/m-Q4_K_M-00001-of-00002.gguf",
        "a/m-Q4_K_M-00002-of-00002.gguf",
        "m-Q8_0.gguf",
        "mmproj-m.gguf",
    ]
    assert first_shards(files) == ["a/m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf"]
    assert pick("x", first_shards(files), None) == "a/m-Q4_K_M-00001-of-00002.gguf"
    assert pick("x", first_shards(files), "q8_0") == "m-Q8_0.gguf"
    assert shards_of(files[0], files) == files[:2]
    with pytest.raises(ConfigError, match=r"00002-of-00002\.gguf is missing"):
        shards_of(files[0], files[:1])
    with pytest.raises(ConfigError, match="name one of its files"):
        pick("x", ["m-IQ2_XS.gguf", "m-IQ3_S.gguf"], None)


def ollama(home: Path, manifest: Any, blob: bytes | None, digest: str = "sha256:" + "a" * 64) -> None:
    store = home / ".ollama" / "models"
    place = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    if blob is not None:
        (store / "blobs").mkdir(exist_ok=True)
        (store / "blobs" / digest.replace(":", "-")).write_bytes(blob)


def layers(*kinds: str, digest: str = "sha256:" + "a" * 64) -> dict[str, Any]:
    return {"layers": [{"mediaType": f"application/vnd.ollama.image.{k}", "digest": digest} for k in kinds]}


def test_models_of_ollama_and_lm_studio(hub: FakeHub, model: bytes, tmp_path: Path) -> None:
    ollama(tmp_path, layers("model", "template", "params"), model)
    studio = tmp_path / ".lmstudio" / "models" / "pub" / "Tiny"
    studio.mkdir(parents=True)
    (studio / "tiny-Q4_K_M.gguf").write_bytes(model)
    for name in ("ollama:tiny", "ollama:tiny:latest", "pub/Tiny"):
        done = spola(hub, tmp_path, "run", "-m", name, "--raw", "-n", "2", "the", "--json")
        assert done.returncode == 0, (name, done.stderr)
    listed = json.loads(spola(hub, tmp_path, "models", "--json").stdout)["models"]
    names = {row["name"]: row for row in listed if row["on_disk"]}
    assert set(names) >= {"ollama:tiny:latest", "pub/Tiny/tiny-Q4_K_M"}
    assert all(row["fits"] and row["decode_tok_s"] > 0 for row in names.values())
    others = [row for row in listed if not row["on_disk"]]
    assert len(others) >= 15
    assert all(row["size"] and row["ttft_s"] for row in others)


@pytest.mark.parametrize(
    ("manifest", "blob", "why"),
    [
        (layers("model"), None, "is missing; pull the model again"),
        (layers("template"), b"", "names 0 model files"),
        (layers("model", digest="sha256:../../etc/passwd"), b"", "names no SHA-256"),
        ("{", b"", "is no JSON|JSON"),
    ],
)
def test_broken_stores(
    manifest: Any, blob: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spola.load.resolve import resolve_model

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    ollama(tmp_path, manifest, blob)
    with pytest.raises(ConfigError, match=why):
        resolve_model("ollama:tiny")
    with pytest.raises(ConfigError, match=r"is no name|is not in Ollama"):
        resolve_model("ollama:../../x")
