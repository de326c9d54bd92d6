"""The live view: what a watcher is shown equals what the engine did."""

from array import array

import pytest

from spola.core.step import Slice, Step
from spola.engine.events import Event
from spola.engine.metrics import Metrics
from spola.engine.report import StepReport
from spola.runtime.live import KEPT_STEPS, LiveView


def report(start: float, slices: list[tuple[int, int, int, int]], *, tokens: int = 0) -> StepReport:
    pieces = tuple(
        Slice(id=id, start=at, ids=array("i", [0] * (rows + drafts)).tobytes(), tables=(), n_drafts=drafts)
        for id, rows, drafts, at in slices
    )
    events = [Event(id=1, ids=tuple(range(tokens)))] if tokens else []
    return StepReport(
        start_s=start,
        elapsed_s=0.5,
        step=Step(index=0, slices=pieces),
        events=events,
        waiting=2,
        running=len(slices),
        kv_used=(5,),
        kv_blocks=(16,),
        kv_shared=(1,),
        kv_cached=(3,),
    )


def view(limit: float | None = None) -> LiveView:
    return LiveView(Metrics(4), lambda contexts: 1000 + sum(contexts), lambda: limit)


def test_nothing_is_kept_without_a_watcher():
    live = view()
    live.step(report(0, [(1, 1, 0, 7)]))
    with live.watching():
        assert live.snapshot(1.0)["steps"] == []
        live.step(report(1, [(1, 1, 0, 8)]))
        assert len(live.snapshot(2.0)["steps"]) == 1
    assert live.snapshot(2.0)["steps"] == []


def test_steps_are_told_once_and_say_which_request_computed_what():
    live = view()
    with live.watching():
        live.step(report(0, [(7, 1, 2, 40), (8, 16, 0, 0)], tokens=3))
        first = live.snapshot(1.0)
        live.step(report(0.5, [(8, 1, 0, 16)]))
        second = live.snapshot(1.0, first["next"])
    (step,) = first["steps"]
    assert step["start_s"] == -1.0
    assert step["slices"] == [
        {"request": 7, "phase": "decode", "rows": 1, "drafts": 2, "position": 40},
        {"request": 8, "phase": "prefill", "rows": 16, "drafts": 0, "position": 0},
    ]
    assert [s["number"] for s in second["steps"]] == [first["next"] + 1]
    assert first["requests"]["waiting"] == 2
    assert first["kv_blocks"] == {"used": 5, "shared": 1, "cached": 3, "all": 16}
    assert first["rates"]["prefill_tok_s"] == pytest.approx(16 / 5)
    assert first["rates"]["output_tok_s"] == pytest.approx(3 / 5)


def test_bandwidth_counts_steps_of_decodes_alone():
    live = view(limit=8000.0)
    with live.watching():
        live.step(report(0, [(1, 64, 0, 0)]))
        assert live.snapshot(1.0)["decode_bandwidth"] is None
        live.step(report(1, [(1, 1, 0, 64), (2, 1, 0, 9)]))
        found = live.snapshot(2.0)["decode_bandwidth"]
    assert found["bytes_s"] == (1000 + 65 + 10) / 0.5
    assert found["fraction"] == pytest.approx(found["bytes_s"] / 8000)


def test_old_steps_go():
    live = view()
    with live.watching():
        for i in range(KEPT_STEPS + 5):
            live.step(report(i, [(1, 1, 0, i)]))
        steps = live.snapshot(KEPT_STEPS + 5.0)["steps"]
    assert len(steps) == KEPT_STEPS
    assert steps[-1]["number"] == KEPT_STEPS + 5
