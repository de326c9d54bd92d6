"""``spola pull`` when something breaks: connections, processes, hashes, the hub, the disk."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from huggingface_hub import constants

from spola.load import hub as hub_module
from spola.load import transfer
from spola.load.resolve import models_found
from support.cli import spola
from support.fake_hub import FakeHub
from support.pulling import REPOSITORY, blobs, failed, process
from support.waiting import PATIENCE_S, until

LARGE = bytes(range(256)) * (3 << 12)  # 3 MB


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
