"""The live stream of the engine: steps arrive once, and watching ends with the client."""

from __future__ import annotations

import json
import urllib.request

import pytest

from support.running import Running
from support.waiting import PATIENCE_S, until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "ignore_eos": True}


def test_a_watcher_sees_the_steps_of_a_request_once(running: Running) -> None:
    with urllib.request.urlopen(running.url + "/v1/engine/live?interval=0.05", timeout=PATIENCE_S) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert json.loads(stream.readline()[6:])["steps"] == []
        assert running.post("/v1/chat/completions", CHAT)[0] == 200
        seen: list[dict[str, object]] = []
        snapshot = {}
        while sum(s["tokens"] for s in seen) < 12:
            line = stream.readline()
            if line.strip():
                snapshot = json.loads(line[6:])
                seen += snapshot["steps"]
        phases = [piece["phase"] for step in seen for piece in step["slices"]]
        assert phases[0] == "prefill"
        assert phases[1:] == ["decode"] * 11
        assert [s["number"] for s in seen] == list(range(seen[0]["number"], seen[0]["number"] + 12))
        assert snapshot["kv_blocks"]["all"] == sum(running.service.config.kv_blocks)
    until(lambda: running.service.live._watchers == 0)


@pytest.mark.parametrize("interval", ["0", "nan", "x", "61", "-1"])
def test_an_interval_that_is_none_is_refused(running: Running, interval: str) -> None:
    status, body = running.get(f"/v1/engine/live?interval={interval}")
    assert status == 400
    assert body["error"]["param"] == "interval"
