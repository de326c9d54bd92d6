"""``spola top`` against a running server."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from spola.cli import main as cli
from spola.cli.top import drawn
from spola.core.errors import SpolaError
from support.running import Running

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def test_one_look(running: Running) -> None:
    assert running.post("/v1/chat/completions", CHAT)[0] == 200
    result = CliRunner().invoke(cli, ["top", running.url])
    assert result.exit_code == 0
    seats = running.service.config.max_seqs
    assert f"running 0/{seats}" in result.stdout
    assert "TTFT p50" in result.stdout


def test_one_snapshot_as_json_also_with_the_api_address(running: Running) -> None:
    result = CliRunner().invoke(cli, ["top", running.url + "/v1", "--json"])
    found = json.loads(result.stdout)
    assert found["requests"]["running"] == 0
    assert found["kv_blocks"]["all"] == sum(running.service.config.kv_blocks)


def test_a_busy_step_is_drawn() -> None:
    piece = {"request": 3, "phase": "prefill", "rows": 16, "drafts": 0, "position": 0}
    step = {"number": 9, "start_s": -0.1, "elapsed_s": 0.01, "kv_used": 2, "tokens": 1}
    spread = {"mean": 0.1, "p50": 0.1, "p95": 0.2, "p99": 0.2, "max": 0.2}
    snapshot = {
        "steps": [
            step | {"slices": [piece, piece | {"request": 4, "phase": "decode", "rows": 1, "drafts": 2}]}
        ],
        "requests": {"running": 2, "waiting": 1, "seats": 8, "finished": {"stop": 5}},
        "kv_blocks": {"used": 4, "shared": 2, "cached": 2, "all": 16},
        "rates": {"output_tok_s": 10.0, "prefill_tok_s": 80.0, "steps_s": 5.0, "busy": 0.5},
        "decode_bandwidth": {"bytes_s": 5e9, "limit_bytes_s": 1e10, "fraction": 0.5},
        "ttft_s": spread,
        "itl_s": spread,
        "preemptions": 0,
        "cached_tokens": 10,
        "prompt_tokens": 40,
    }
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(drawn("http://x", snapshot))
    text = console.export_text()
    assert "█" * 5 + "▓" * 5 + "▒" * 5 + "·" * 25 in text
    assert "50% of this machine's 10.0 GB/s" in text
    assert "1 + 2 drafts" in text
    assert "cached 25% of prompts" in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "cannot be reached: Connection refused"),
        ("ftp://x", "is no address"),
        ("http://", "is no address"),
    ],
)
def test_no_server_is_one_line(url: str, said: str) -> None:
    with pytest.raises(SpolaError, match=said):
        cli(["top", url], standalone_mode=False)
