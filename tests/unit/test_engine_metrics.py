"""Metrics and timelines of real schedules on the null backend, against what the steps and events say."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.core.trace import TraceWriter
from spola.engine.metrics import Metrics
from spola.engine.report import StepReport
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.timeline import Timeline
from support.engine_rig import Rig, request
from support.service import tiny_file


class Reports:
    def __init__(self) -> None:
        self.all: list[StepReport] = []

    def step(self, report: StepReport) -> None:
        self.all.append(report)

    def close(self) -> None:
        pass


def observed(*more, **rig) -> tuple[Rig, Metrics, Reports]:
    made = Rig(**rig)
    metrics, reports = Metrics(made.scheduler.shape.seqs, stall_s=0.5), Reports()
    made.engine.observers = [metrics, reports, *more]
    return made, metrics, reports


def busy(made: Rig) -> None:
    """Preemptions, an abort while waiting and one while running, a refused step."""
    made.add(*(request(i, 6 + i, 12) for i in range(1, 9)))
    for _ in range(3):
        made.step()
    made.add(request(20, 5, 5), request(21, 5, 5))
    made.engine.abort(21)
    made.engine.abort(2)
    made.finish()


def test_counters_agree_with_steps_and_events() -> None:
    made, metrics, reports = observed(blocks=14, seqs=4, rows=16)
    busy(made)
    events = [event for report in reports.all for event in report.events]
    figures = metrics.as_dict()
    finals = [event for event in events if event.final]
    assert sum(figures["requests"]["finished"].values()) == len(finals) == 10
    assert figures["requests"]["finished"]["abort"] == 2
    assert figures["tokens"]["output"] == sum(len(event.ids) for event in events)
    rows = figures["tokens"]["prefill_rows"] + figures["tokens"]["decode_rows"]
    assert rows == sum(step.n_rows for step in made.steps)
    assert figures["steps"]["count"] == len(made.steps)
    assert figures["preemptions"] == made.scheduler.stats.preemptions > 0
    assert (metrics.waiting, metrics.running, metrics.kv_used) == (0, 0, 0)
    assert 0 < metrics.kv_peak <= metrics.kv_filled_peak <= metrics.kv_blocks == 14
    assert not metrics._last_token


def test_times_of_one_request_are_its_steps() -> None:
    made, metrics, reports = observed(seqs=1)
    made.add(request(1, 5, 4, arrival_s=-2.0), request(2, 5, 1))
    made.finish()
    # The clock of the rig adds a second per step; a step itself takes its virtual time.
    ends = [report.end_s for report in reports.all[:4]]
    summary = made.results[1].finals[0].summary
    assert summary.queue_s == 2.0
    assert summary.ttft_s == pytest.approx(ends[0] + 2.0)
    assert summary.latency_s == pytest.approx(ends[3] + 2.0)
    assert summary.tpot_s == pytest.approx((ends[3] - ends[0]) / 3)
    gaps = [b - a for a, b in pairwise(ends)]
    assert summary.longest_gap_s == pytest.approx(max(gaps))
    figures = metrics.as_dict()
    assert figures["itl_s"]["max"] == metrics.longest_gap_s == pytest.approx(max(gaps))
    assert metrics.times["itl_s"].count == metrics.stalls == 3  # all of about a second
    second = made.results[2].finals[0].summary
    assert second.tpot_s is None
    assert second.queue_s == 4.0
    assert figures["queue_s"]["max"] == 4.0


def test_idle_seats_are_the_share_of_time_that_nobody_computed_in_them() -> None:
    made, metrics, _ = observed(seqs=4)
    made.add(request(1, 1, 10))
    made.finish()
    assert metrics.as_dict()["steps"]["idle_seats"] == pytest.approx(0.75)


def test_a_request_that_never_ran_has_no_times() -> None:
    made, metrics, _ = observed()
    made.add(request(1, 5, 4))
    made.engine.abort(1)
    made.step()
    figures = metrics.as_dict()
    assert figures["requests"]["finished"]["abort"] == 1
    for name in ("queue_s", "ttft_s", "itl_s", "tpot_s", "latency_s"):
        assert figures[name]["mean"] is None
    json.dumps(figures)


def timeline(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def test_a_timeline_shows_each_piece_of_each_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    line = Timeline(path)
    made, metrics, _ = observed(line, blocks=14, seqs=4, rows=16)
    busy(made)
    made.engine.close()
    events = timeline(path)
    pieces = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    drawn = sorted((e["args"]["step"], e["args"]["request"], e["args"]["rows"]) for e in pieces)
    assert drawn == sorted((s.index, p.id, p.n) for s in made.steps for p in s.slices)
    assert {e["name"] for e in pieces} == {"prefill", "decode"}
    assert all((e["name"] == "decode") == (e["args"]["rows"] == 1) for e in pieces)
    assert len([e for e in events if e["ph"] == "X" and e["pid"] == 1]) == len(made.steps)
    # Every stay is opened and closed, holds its pieces, and is alone in its seat.
    seats: dict[int, dict | None] = {}
    stays = 0
    for event in events:
        if event["pid"] != 2 or event["ph"] not in "BEX":
            continue
        seat = event["tid"]
        if event["ph"] == "B":
            assert seats.get(seat) is None
            seats[seat] = event
        elif event["ph"] == "E":
            assert seats[seat]["name"] == event["name"]
            assert seats[seat]["ts"] <= event["ts"]
            seats[seat], stays = None, stays + 1
        else:
            assert seats[seat]["name"] == f"request {event['args']['request']}"
            assert seats[seat]["ts"] <= event["ts"]
    assert not any(seats.values())
    assert len(seats) == 4
    assert stays == 9 + made.scheduler.stats.preemptions  # one of the ten never ran
    ends = [e["args"]["end"] for e in events if e["ph"] == "E"]
    assert ends.count("preempted") == made.scheduler.stats.preemptions == metrics.preemptions > 0
    waits = [e for e in events if e["ph"] == "b"]
    assert {e["id"] for e in waits} >= {5, 6, 7, 8, 20, 21}


def test_of_a_program_that_dies_all_events_but_the_bracket_are_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    line = Timeline(path)
    made, _, _ = observed(line)
    made.add(request(1, 5, 3))
    made.step()
    text = path.read_text()  # nobody closed it yet
    line.close()
    assert text.endswith(",\n")
    events = json.loads(text[:-2] + "]")
    assert [e["name"] for e in events if e["ph"] == "X"] == ["prefill", "5 prefill"]


def test_a_trace_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        TraceWriter(tmp_path / "missing" / "trace.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_the_trace_and_nothing_else() -> None:
    line = Timeline(Path("/dev/full"))
    made, _, _ = observed(line)
    made.add(request(1, 5, 3))
    made.finish()
    made.engine.close()
    assert made.results[1].reason == "length"
    assert "/dev/full" in line.failure


def test_a_service_has_metrics_and_closes_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    service = build_service(str(tiny_file(tmp_path)), Options(backend="null", trace=path))
    assert service.metrics.seats == service.config.max_seqs
    service.close()
    service.close()
    assert timeline(path)
