"""spola batch killed at random moments: every custom_id once, the file equal to an uninterrupted run's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from spola.server.batch import partial_path
from support.batch_lines import mixed, write_lines
from support.service import tiny_file

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
KILLS, LINES = (20, 1500) if SOAK else (3, 120)


def start(model: Path, source: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spola", "batch", str(source), "-o", str(out), "-m", str(model)]
    return subprocess.Popen(
        [*command, "--backend", "null", "--max-seqs", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_killed_again_and_again_it_gives_what_an_uninterrupted_run_gives(tmp_path: Path) -> None:
    model = tiny_file(tmp_path)
    source, out = write_lines(tmp_path / "in.jsonl", mixed(LINES)), tmp_path / "out.jsonl"
    alone = tmp_path / "alone.jsonl"
    process = start(model, source, alone)
    assert process.communicate()[1] is not None
    assert process.returncode == 0
    expected = alone.read_bytes()
    rng = random.Random(len(expected))
    killed = 0
    for kill in range(1, KILLS + 1):
        # Anywhere in this share of the work, then a moment more: also while a line is being written.
        goal = int(len(expected) * (kill - rng.random()) / (KILLS + 1))
        process = start(model, source, out)
        while size(partial_path(out)) < goal and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.003))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL and not out.exists()
        lines = partial_path(out).read_bytes().split(b"\n")[:-1] if partial_path(out).exists() else []
        ids = [json.loads(line)["custom_id"] for line in lines]
        assert len(ids) == len(set(ids))
    assert killed == KILLS
    process = start(model, source, out)
    assert process.communicate()[1] is not None
    assert process.returncode == 0
    assert out.read_bytes() == expected
    assert not partial_path(out).exists()
