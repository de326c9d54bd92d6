"""``spola pull`` against a hub made here: choosing, redirects, resuming, hashes, refusals, what is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from spola.core.errors import ConfigError
from spola.load import hub as hub_module
from spola.load import names, transfer
from spola.load.pick import first_shards, pick, shards_of
from spola.load.resolve import models_found, resolve_model
from support.cli import Done, spola
from support.fake_hub import FakeHub, fake_hub
from support.hf_tokenizer import write_tokenizer
from support.tiny import Tiny, write_tiny_gguf, write_tiny_safetensors
from support.waiting import PATIENCE_S, until

REPOSITORY = "some-org/Tiny-GGUF"
LARGE = bytes(range(256)) * (3 << 12)  # 3 MB


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, Tiny())
    return path.read_bytes()


@pytest.fixture
def hub(server: FakeHub, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The hub with one repository, a home without models, and no waiting between attempts."""
    server.reset()
    server.repositories[REPOSITORY] = {
        "README.md": b"hello",
        "tiny-Q4_K_M.gguf": model,
        "tiny-Q8_0.gguf": model + bytes(32),
        "mmproj-tiny.gguf": b"projector",
    }
    for name in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OLLAMA_MODELS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in places(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(transfer, "WAIT_S", 0.0)
    return server


def places(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_PROXY": "*",
    }


def process(hub: FakeHub, home: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    """``spola`` in a process of its own, which reads the hub's variables itself."""
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    return subprocess.Popen(
        [sys.executable, "-m", "spola", *args],
        env=kept | places(home) | {"HF_ENDPOINT": hub.url} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def failed(done: Done) -> str:
    """The one line of an error."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("spola: error: ")
    assert "Traceback" not in done.stderr
    return line


def blobs(home: Path) -> list[Path]:
    return sorted(path for path in (home / "hf").rglob("blobs/*") if path.is_file())


def test_a_file_is_picked_fetched_checked_and_found(hub: FakeHub, model: bytes, tmp_path: Path) -> None:
    done = spola("pull", REPOSITORY, "--json")
    found = json.loads(done.stdout)
    assert Path(found["path"]).read_bytes() == model
    assert (found["fetched"], found["bytes"], found["fetched_bytes"]) == (True, len(model), len(model))
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


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_goes_on_where_it_was(hub: FakeHub, tmp_path: Path, ranges: bool) -> None:
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": LARGE}
    hub.cuts, hub.ranges = [1 << 20, 1 << 18], ranges
    found = json.loads(spola("pull", REPOSITORY, "--json").stdout)
    assert Path(found["path"]).read_bytes() == LARGE
    asked = [row.range for row in hub.downloads()]
    assert asked[0] is None
    assert asked[1] == f"bytes={1 << 20}-"
    # A server that does not know ranges sends all of it again, and what is here is not added to.
    assert asked[2] == (f"bytes={(1 << 20) + (1 << 18)}-" if ranges else f"bytes={1 << 18}-")
    assert [path.stat().st_size for path in blobs(tmp_path)] == [len(LARGE)]


def test_a_killed_process_leaves_a_part_that_the_next_one_uses(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": LARGE}
    hub.slow = 0.05
    child = process(hub, tmp_path, "pull", REPOSITORY)
    until(lambda: any(path.stat().st_size for path in blobs(tmp_path)))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    part = blobs(tmp_path)[0]
    kept = part.stat().st_size
    assert part.name.endswith(".incomplete")
    assert 0 < kept < len(LARGE)
    assert models_found() == [] or all(REPOSITORY not in where.name for where in models_found())
    hub.slow = 0.0
    hub.requests.clear()
    found = json.loads(spola("pull", REPOSITORY, "--json").stdout)
    assert [row.range for row in hub.downloads()] == [f"bytes={kept}-"]
    assert (found["bytes"], found["fetched_bytes"]) == (len(LARGE), len(LARGE) - kept)
    assert Path(found["path"]).read_bytes() == LARGE


def test_an_interrupt_says_what_is_kept(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": LARGE}
    hub.slow = 0.05
    child = process(hub, tmp_path, "pull", REPOSITORY)
    until(lambda: any(path.stat().st_size for path in blobs(tmp_path)))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (130, "")
    assert f"of 3.1 MB are kept; `spola pull {REPOSITORY}` goes on from there" in err


def test_a_part_of_a_file_that_was_replaced_is_not_used(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": LARGE}
    hub.cuts = [1 << 20] + [0] * transfer.ATTEMPTS
    assert "cannot be reached" in failed(spola("pull", REPOSITORY))
    assert [path.stat().st_size for path in blobs(tmp_path)] == [1 << 20]
    hub.cuts.clear()
    hub.repositories[REPOSITORY] = {"large-Q4_K_M.gguf": LARGE[::-1]}
    hub.requests.clear()
    found = json.loads(spola("pull", REPOSITORY, "--json").stdout)
    assert Path(found["path"]).read_bytes() == LARGE[::-1]
    assert [row.range for row in hub.downloads()] == [None]


def test_a_hub_that_is_busy_is_asked_again(hub: FakeHub) -> None:
    hub.busy = transfer.ATTEMPTS - 1
    assert spola("pull", REPOSITORY).returncode == 0
    hub.busy = 2 * transfer.ATTEMPTS
    assert "HTTP 503" in failed(spola("pull", f"{REPOSITORY}:Q8_0"))


def test_a_wrong_hash_is_refused_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.lie = True
    assert "should be " + "f" * 64 in failed(spola("pull", REPOSITORY))
    assert blobs(tmp_path) == []
    hub.lie = False
    assert spola("pull", REPOSITORY).returncode == 0
    # Also of a file that was damaged after it came.
    blob = blobs(tmp_path)[0]
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    assert "damaged" in failed(spola("pull", REPOSITORY))
    assert spola("pull", REPOSITORY).returncode == 0


def test_a_server_that_sends_too_much(hub: FakeHub, tmp_path: Path) -> None:
    hub.more = b"more"
    assert "sends more than" in failed(spola("pull", REPOSITORY))
    hub.more = b""
    assert spola("pull", REPOSITORY).returncode == 0


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "no such model, or it is private"),
        (404, "no such model"),
        (403, "terms must be accepted"),
        (429, "wait a few minutes"),
        (500, "HTTP 500"),
    ],
)
def test_refusals_are_one_line(hub: FakeHub, status: int, why: str) -> None:
    hub.status = status
    assert why in failed(spola("pull", REPOSITORY))


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


def test_without_a_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in failed(spola("pull", REPOSITORY))
    assert "cannot be reached" in failed(spola("pull", "qwen3-0.6b"))
    assert f"get it with `spola pull {REPOSITORY}`" in failed(spola("run", "-m", REPOSITORY, "x"))
    assert "get it with `spola pull qwen3-0.6b` (639.4 MB)" in failed(spola("run", "-m", "qwen3-0.6b", "x"))


def test_offline(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = process(hub, tmp_path, "pull", REPOSITORY, HF_HUB_OFFLINE="1")
    _, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, "HF_HUB_OFFLINE is set; unset it" in err) == (1, True)
    path = spola("pull", REPOSITORY).stdout
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    done = spola("pull", REPOSITORY)
    assert (done.returncode, done.stdout) == (0, path)
    assert "not compared with the hub" in done.stderr
    assert hub.requests == []


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


def test_a_full_disk_is_said_before(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 100

    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda folder: Usage)
    line = failed(spola("pull", REPOSITORY))
    assert "are to come and 0.0 MB are free" in line
    assert hub.downloads() == []


def test_two_processes_do_not_write_one_file(hub: FakeHub, tmp_path: Path) -> None:
    plan = hub_module.look_up(REPOSITORY, None)
    blob = tmp_path / "hf/hub/models--some-org--Tiny-GGUF/blobs" / str(plan.files[0].sha256)
    blob.parent.mkdir(parents=True)
    with transfer.partial_path(blob).open("ab") as held:
        transfer._lock(held, plan.files[0])
        assert "another process" in failed(spola("pull", REPOSITORY))
    assert spola("pull", REPOSITORY).returncode == 0


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


def test_a_short_name_means_one_file(hub: FakeHub, model: bytes) -> None:
    row = names.known("llama3.2-1b")
    assert row is not None
    hub.repositories[row.repository] = {row.file: model, "other-Q4_K_M.gguf": model + b"x"}
    done = spola("pull", row.name, "--json")
    found = json.loads(done.stdout)
    assert (found["files"], found["name"]) == ([row.file], row.name)
    assert f"the table of short names says {row.bytes} bytes" in done.stderr
    assert resolve_model(row.name).path.read_bytes() == model


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
    hub: FakeHub, model: bytes, tmp_path: Path, name: str
) -> None:
    hub.repositories[REPOSITORY] = {name: model}
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
