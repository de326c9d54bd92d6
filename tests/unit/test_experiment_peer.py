"""The comparison with llama.cpp: its plan, its bookkeeping and its arithmetic, without measuring anything."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import stat
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "experiments"
sys.path.insert(0, str(FOLDER))

peer_report = importlib.import_module("peer_report")
peer_run = importlib.import_module("peer_run")
BATCHES, GRID, Job, Place = peer_run.BATCHES, peer_run.GRID, peer_run.Job, peer_run.Place

SPEED = {"spola": 100.0, "llama": 40.0}


def sample_of(job, others: float = 0.0) -> dict:
    """Figures that tell where they come from: later rounds are faster by one, flash attention by a tenth."""
    speed = SPEED[job.side] + job.round
    if job.setting:
        speed *= 1.0 + 0.1 * job.setting[1] - 0.2 * (1 - job.setting[0])
    if job.name.startswith("load"):
        values = {"seconds": 1.0, "peak_mb": 200.0}
    else:
        values = {f"decode{size}": speed * size for size in BATCHES} | {"prefill": 2 * speed}
        if job.side == "spola":
            values |= {"decode1_roofline": 0.8, "prefill_roofline": 0.5}
    made = {"job": {**job.__dict__, "setting": list(job.setting)}, "seconds": 1.0, "others": others}
    return made | {"values": values}


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """main() with a stub for measuring, and the jobs measured; the first try of one job is disturbed."""
    module = runpy.run_path(str(FOLDER / "peer.py"))
    measured: list = []

    def measure(job, place) -> dict:
        measured.append(job)
        noisy = job.name == "tg64" and job.round == 2 and measured.count(job) == 1
        return sample_of(job, others=0.7 if noisy else 0.02)

    monkeypatch.setitem(module["main"].__globals__, "measure", measure)
    return module["main"], measured


def arguments(out: Path, *more: str) -> list[str]:
    return ["run", "-o", str(out), "--llama", "/nowhere", "--files", "/nowhere", *more]


def test_everything_is_measured_once_more_when_disturbed_and_then_nothing_is_left(
    experiment, tmp_path: Path, capsys
) -> None:
    main, measured = experiment
    assert main(arguments(tmp_path, "--models", "smollm2")) == 0
    assert "nothing is left" in capsys.readouterr().out
    scan = [job for job in measured if job.round == 0]
    assert len(scan) == len(set(scan)) == 2 * len(GRID) + len(GRID) // 2 + 2 * 2
    rounds = [job for job in measured if job.round]
    again = [job for job in rounds if rounds.count(job) == 2]
    assert {(job.name, job.round) for job in again} == {("tg64", 2)}
    for number in range(1, 6):
        jobs = {(job.side, job.name) for job in rounds if job.round == number}
        assert len(jobs) == 3 + 5 + 2 * 2 + 2 * 2
    first = [next(job.side for job in rounds if job.round == number) for number in range(1, 6)]
    assert first == ["spola", "llama", "spola", "llama", "spola"]
    best = {job.setting[:2] for job in rounds if job.side == "llama" and job.setting}
    assert best == {(1, 1)}
    before = len(measured)
    assert main(arguments(tmp_path, "--models", "smollm2")) == 0
    assert len(measured) == before


def test_a_model_can_be_measured_without_the_deep_contexts(experiment, tmp_path: Path) -> None:
    main, measured = experiment
    model = "llama-1b-F16"
    assert main(arguments(tmp_path, "--models", model, "--shallow", model)) == 0
    names = {(job.side, job.name) for job in measured if not job.name.startswith("load")}
    assert names == {("spola", "short"), ("llama", "pp512"), ("llama", "tg64")}


def test_it_stops_when_time_is_up_and_goes_on_where_it_was(experiment, tmp_path: Path, capsys) -> None:
    main, measured = experiment
    assert main(arguments(tmp_path, "--minutes", "0")) == 0
    assert measured == []
    assert "time is up" in capsys.readouterr().out


def test_the_report_says_which_aims_are_met(experiment, tmp_path: Path, capsys) -> None:
    main, _ = experiment
    main(arguments(tmp_path, "--models", "smollm2"))
    capsys.readouterr()
    assert main(["report", "-o", str(tmp_path), "--models", "smollm2,llama-1b-F16"]) == 0
    document = json.loads((tmp_path / "peer.json").read_text())
    figures = document["models"]["smollm2"]["figures"]
    decode = figures["decode"]
    assert decode["spola"] == {"median": 103.0, "min": 101.0, "max": 105.0, "n": 5}
    assert decode["llama.cpp"]["median"] == pytest.approx(43 * 1.1)
    assert decode["ratio"] == pytest.approx(103 / 47.3)
    assert decode["met"] is True
    assert figures["prefill 512"]["met"] is False
    assert figures["batch 32"]["ratio"] == pytest.approx(103 / 47.3)
    assert document["models"]["llama-1b-F16"]["figures"]["decode"]["ratio"] is None
    text = (tmp_path / "peer.md").read_text()
    assert "4 missed" in text
    assert "| decode | 103.0 (101.0 to 105.0) | 47.3" in text


def test_a_sample_is_read_from_what_the_programs_print(tmp_path: Path) -> None:
    rows = [{"n_prompt": 512, "avg_ts": 61.5}, {"n_prompt": 0, "avg_ts": 22.25}]
    program = tmp_path / "llama-bench"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(rows))})\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * 100)
    place = Place(tmp_path, tmp_path, tmp_path, os.cpu_count() or 1, model)
    found = peer_run.measure(Job("smollm2", "llama", "alone", (), 1), place)
    assert found["values"] == {"prefill": 61.5, "decode1": 22.25}
    assert found["peak_mb"] > 1
    assert found["others"] >= 0
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such thing')\n")
    broken = peer_run.measure(Job("smollm2", "llama", "pp512", (1, 0, "mmap")), place)
    assert "no such thing" in broken["error"]
    assert not peer_report.Samples([broken], 9.0).counts(broken)


def test_batches_are_read_by_their_size() -> None:
    class Done:
        stdout = 'note\n{"pl": 1, "speed_tg": 20.5}\n{"pl": 32, "speed_tg": 99.0}\n'

    job = Job("smollm2", "llama", "batch", (1, 1, "mmap"))
    assert peer_run.values(job, Done()) == {"decode1": 20.5, "decode32": 99.0}  # type: ignore[arg-type]
