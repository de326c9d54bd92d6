"""``spola pull`` from a hub made here: what a name means, what is fetched, and that it is found and runs."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from spola.core.errors import ConfigError
from spola.load import names
from spola.load.pick import first_shards, pick, shards_of
from spola.load.resolve import models_found, resolve_model
from support.cli import spola
from support.fake_hub import FakeHub
from support.hf_tokenizer import write_tokenizer
from support.pulling import REPOSITORY, failed, process
from support.tiny import Tiny, write_tiny_safetensors
from support.waiting import PATIENCE_S


def test_a_file_is_picked_fetched_checked_and_found(hub: FakeHub, tiny_gguf: bytes, tmp_path: Path) -> None:
    done = spola("pull", REPOSITORY, "--json")
    found = json.loads(done.stdout)
    assert Path(found["path"]).read_bytes() == tiny_gguf
    assert (found["fetched"], found["bytes"], found["fetched_bytes"]) == (
        True,
        len(tiny_gguf),
        len(tiny_gguf),
    )
    assert found["name"] == f"{REPOSITORY}:tiny-Q4_K_M"
    assert "tiny-Q4_K_M.gguf (chosen of 2" in done.stderr
    assert f"spola run -m {REPOSITORY}:tiny-Q4_K_M" in done.stderr
    # The library finds it where it would have put it.
    cached = huggingface_hub.try_to_load_from_cache(
        REPOSITORY, "tiny-Q4_K_M.gguf", cache_dir=tmp_path / "hf/hub"
    )
    assert cached is not None
    assert Path(str(cached)).samefile(found["path"])
    for name in (REPOSITORY, f"{REPOSITORY}:Q4_K_M", found["name"]):
        assert resolve_model(name).path.samefile(found["path"])
    assert f"{REPOSITORY}:tiny-Q4_K_M" in [where.name for where in models_found()]
    # Nothing is fetched twice.
    hub.requests.clear()
    again = json.loads(spola("pull", f"{REPOSITORY}:q4_k_m", "--json").stdout)
    assert (again["fetched"], again["path"]) == (False, found["path"])
    assert hub.downloads() == []


def test_in_a_process_of_its_own_and_run(hub: FakeHub, tmp_path: Path) -> None:
    out, err = process(hub, tmp_path, "pull", f"{REPOSITORY}:Q8_0").communicate(timeout=PATIENCE_S)
    assert Path(out.strip()).name == "tiny-Q8_0.gguf", err
    run = spola("run", "-m", REPOSITORY, "--raw", "-n", "3", "the", "--json")
    assert len(json.loads(run.stdout)["token_ids"]) == 3


def test_a_gated_model_takes_a_token_which_stays_with_the_hub(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = "hf_secret"
    line = failed(spola("pull", REPOSITORY))
    assert "HF_TOKEN" in line
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.requests.clear()
    assert spola("pull", REPOSITORY).returncode == 0
    for row in hub.requests:
        # The data come from another host, which has no business with the token.
        assert row.authorization == (None if row.path.startswith("/cdn/") else "Bearer hf_secret")


def test_a_plan_takes_the_configuration_alone(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_tiny_safetensors(tmp_path / "made", Tiny())
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert made is not None
    hub.repositories["org/Folder"] = files
    args = ("plan", "org/Folder", "--hardware", "rtx-4090", "--context", "16", "--json")
    online = json.loads(spola(*args).stdout)
    assert "config.json of org/Folder on the hub" in online["origin"]
    assert [row.path.rpartition("/")[2] for row in hub.downloads()] == ["config.json"]
    assert "get it with" in failed(spola("run", "-m", "org/Folder", "x"))
    # Once more without the hub; and where there is none at all, a line at once.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert json.loads(spola(*args).stdout)["weights_bytes"] == online["weights_bytes"]
    assert "HF_HUB_OFFLINE is set" in failed(spola("plan", "org/Other"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in failed(spola("plan", "org/Other"))
    assert "has no config.json" not in failed(spola("plan", REPOSITORY))


def test_a_folder_without_gguf_comes_whole(hub: FakeHub, tmp_path: Path) -> None:
    made = write_tiny_safetensors(tmp_path / "made", Tiny(tied=True))
    write_tokenizer(tmp_path / "made", made.metadata)
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    pickled = {"pytorch_model.bin": b"pickled" * 999, "consolidated.safetensors": b"twice" * 999}
    hub.repositories["org/Folder"] = wanted | pickled
    # Not whole: one file is damaged on the way. Nothing of it passes for a model.
    hub.lie = True
    failed(spola("pull", "org/Folder"))
    assert "is not on this disk" in failed(spola("run", "-m", "org/Folder", "x"))
    hub.lie = False
    folder = Path(json.loads(spola("pull", "org/Folder", "--json").stdout)["path"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    assert spola("run", "-m", "org/Folder", "--raw", "-n", "2", "the").returncode == 0
    assert "org/Folder" in [where.name for where in models_found()]


def test_all_shards_come(hub: FakeHub) -> None:
    parts = {f"Q4_K_M/big-Q4_K_M-0000{i}-of-00003.gguf": bytes([i]) * 2000 for i in (1, 2, 3)}
    hub.repositories[REPOSITORY] = parts
    found = json.loads(spola("pull", REPOSITORY, "--json").stdout)
    assert (found["files"], found["bytes"]) == (list(parts), 6000)
    folder = Path(found["path"]).parent
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == list(parts.values())


def test_a_short_name_means_one_file(hub: FakeHub, tiny_gguf: bytes) -> None:
    row = names.known("llama3.2-1b")
    assert row is not None
    hub.repositories[row.repository] = {row.file: tiny_gguf, "other-Q4_K_M.gguf": tiny_gguf + b"x"}
    done = spola("pull", row.name, "--json")
    found = json.loads(done.stdout)
    assert (found["files"], found["name"]) == ([row.file], row.name)
    assert f"the table of short names says {row.bytes} bytes" in done.stderr
    assert resolve_model(row.name).path.read_bytes() == tiny_gguf


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nonsense", "is no short name"),
        (f"{REPOSITORY}:Q2_K", "0 files fit; there are tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"),
        ("../etc/passwd", "is a path"),
        ("/etc/passwd", "is a path"),
        ("org/../name", "is a path"),
        ("~/model", "is a path"),
        ("ollama:llama3.2", "Ollama fetches its own"),
        ("x" * 5000 + "/y", "is no name|no such model|write org/name"),
    ],
)
def test_names_that_mean_nothing(hub: FakeHub, name: str, why: str) -> None:
    line = failed(spola("pull", name))
    assert any(part in line for part in why.split("|")), line
    assert len(line) < 600


@pytest.mark.parametrize("name", ["../../outside-Q4_K_M.gguf", "/outside-Q4_K_M.gguf", "a\\b-Q4_K_M.gguf"])
def test_files_that_would_lie_elsewhere_are_not_taken(
    hub: FakeHub, tiny_gguf: bytes, tmp_path: Path, name: str
) -> None:
    hub.repositories[REPOSITORY] = {name: tiny_gguf}
    assert "holds no .gguf file" in failed(spola("pull", REPOSITORY))
    assert not list(tmp_path.rglob("*.gguf"))


def test_picking() -> None:
    files = [
        "a/m-Q4_K_M-00001-of-00002.gguf",
        "a/m-Q4_K_M-00002-of-00002.gguf",
        "m-Q8_0.gguf",
        "mmproj-m.gguf",
    ]
    assert first_shards(files) == ["a/m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf"]
    assert pick("x", first_shards(files), None)[0] == "a/m-Q4_K_M-00001-of-00002.gguf"
    assert pick("x", first_shards(files), "q8_0")[0] == "m-Q8_0.gguf"
    assert shards_of(files[0], files) == files[:2]
    with pytest.raises(ConfigError, match=r"00002-of-00002\.gguf is missing"):
        shards_of(files[0], files[:1])
    # The whole name of a file beats a part of another one's.
    assert pick("x", ["m-Q8_0.gguf", "m-Q8_0-Q8_0.gguf"], "m-Q8_0")[0] == "m-Q8_0.gguf"
    # Types that are not run here are passed over, and refused when they are asked for.
    assert pick("x", ["m-IQ2_XS.gguf", "m-Q4_0.gguf"], None)[0] == "m-Q4_0.gguf"
    with pytest.raises(ConfigError, match="none of its types is run here; there are m-IQ2_XS"):
        pick("x", ["m-IQ2_XS.gguf", "m-IQ3_S.gguf"], None)
    with pytest.raises(ConfigError, match="IQ2_XS is a type that is not run here"):
        pick("x", ["m-IQ2_XS.gguf", "m-Q4_0.gguf"], "IQ2_XS")
    with pytest.raises(ConfigError, match="name one of its files"):
        pick("x", ["m-one.gguf", "m-two.gguf"], None)
