"""``spola top``: a server's engine in the terminal, as it works. Draws what ``/v1/engine/live`` tells."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spola.cli.output import emit_json, json_option, printable
from spola.core.errors import ConfigError, SpolaError

__all__ = ["command", "drawn"]

TIMEOUT_S = 10.0  # the stream has news every half second
BAR = 40  # characters
ROWS = 24  # requests shown at most


@click.command("top", epilog="Example: spola top http://127.0.0.1:8000")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--key", help="API key; default: OPENAI_API_KEY.")
@click.option("--once", is_flag=True, help="Show the state of now and end.")
@json_option
def command(url: str, key: str | None, once: bool, as_json: bool) -> None:
    """Show what the engine of the server at URL is doing: requests, KV blocks, speed, the last step.

    Ctrl-C ends it. --json prints one snapshot and ends.
    """
    with closing(_Feed(url, key or os.environ.get("OPENAI_API_KEY"))) as feed:
        snapshots = feed.snapshots()
        if as_json:
            emit_json(next(snapshots))
            return
        console = Console()
        if once or not console.is_terminal:
            console.print(drawn(url, next(snapshots)))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for snapshot in snapshots:
                live.update(drawn(url, snapshot), refresh=True)


class _Feed:
    """The live stream of the server at ``url``. Raises ConfigError for an address that is none."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"URL: {url!r} is no address of a server; write http://HOST:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/engine/live?interval=0.5"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._url = url

    def snapshots(self) -> Iterator[dict[str, Any]]:
        """Until the server ends. Raises SpolaError when it cannot be reached or refuses."""
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            response = self._connection.getresponse()
            if response.status != 200:
                raise SpolaError(f"{self._url} answers {response.status}: {_reason(response.read(4096))}")
            for line in response:
                if line.startswith(b"data: "):
                    yield msgspec.json.decode(line[6:])
        except (OSError, http.client.HTTPException) as error:
            raise SpolaError(f"{self._url} cannot be reached: {_why(error)}") from None
        except msgspec.DecodeError:
            raise SpolaError(f"{self._url} is no spola server") from None
        raise SpolaError(f"{self._url} has ended the stream")

    def close(self) -> None:
        self._connection.close()


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _reason(body: bytes) -> str:
    try:
        return printable(str(msgspec.json.decode(body)["error"]["message"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return "no reason given"


def drawn(url: str, snapshot: dict[str, Any]) -> RenderableType:
    """One snapshot as a person reads it."""
    requests, rates, kv = snapshot["requests"], snapshot["rates"], snapshot["kv_blocks"]
    figures = Table.grid(padding=(0, 3))
    finished = sum(requests["finished"].values())
    figures.add_row(
        f"running {requests['running']}/{requests['seats']}",
        f"waiting {requests['waiting']}",
        f"finished {finished}",
        f"preemptions {snapshot['preemptions']}",
    )
    figures.add_row(
        f"decode {rates['output_tok_s']:.1f} tok/s",
        f"prefill {rates['prefill_tok_s']:.1f} tok/s",
        f"busy {rates['busy']:.0%}",
        _hits(snapshot),
    )
    figures.add_row(*(_spread(name, snapshot[f"{name}_s"]) for name in ("ttft", "itl")))
    lines: list[RenderableType] = [
        Text(f"spola at {printable(url)}", style="bold"),
        figures,
        _blocks(kv),
        Text(_bandwidth(snapshot)),
    ]
    return Group(*lines, *_last_step(snapshot["steps"]))


def _hits(snapshot: dict[str, Any]) -> str:
    prompts = snapshot["prompt_tokens"]
    return f"cached {snapshot['cached_tokens'] / prompts:.0%} of prompts" if prompts else "no prompt yet"


def _spread(name: str, of: dict[str, float | None]) -> str:
    if of["p50"] is None:
        return f"{name.upper()} -"
    return f"{name.upper()} p50 {of['p50'] * 1000:.0f} ms, p95 {(of['p95'] or 0) * 1000:.0f} ms"


def _blocks(kv: dict[str, int]) -> Text:
    """Used, shared and cached blocks as one bar."""
    bar = Text("KV ")
    done = 0
    owned = kv["used"] - kv["shared"]
    for n, mark, style in (
        (owned, "█", "blue"),
        (kv["shared"], "▓", "magenta"),
        (kv["cached"], "▒", "green"),
    ):
        width = round(BAR * n / kv["all"]) if kv["all"] else 0
        bar.append(mark * width, style)
        done += width
    bar.append("·" * max(0, BAR - done))
    free = kv["all"] - kv["used"] - kv["cached"]
    bar.append(f" {kv['used']} used ({kv['shared']} shared), {kv['cached']} cached, {free} free blocks")
    return bar


def _bandwidth(snapshot: dict[str, Any]) -> str:
    found = snapshot["decode_bandwidth"]
    if found is None:
        return "no step of decodes alone in the last seconds"
    text = f"decode reads {found['bytes_s'] / 1e9:.1f} GB/s"
    if found["fraction"] is None:
        return f"{text}; this machine's limit is not measured yet"
    return f"{text} = {found['fraction']:.0%} of this machine's {found['limit_bytes_s'] / 1e9:.1f} GB/s"


def _last_step(steps: list[dict[str, Any]]) -> list[RenderableType]:
    if not steps:
        return [Text("no step since the last look", style="dim")]
    step = steps[-1]
    table = Table(title=f"step {step['number']}, {step['elapsed_s'] * 1000:.1f} ms", title_justify="left")
    for name in ("request", "phase", "tokens", "position"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for piece in step["slices"][:ROWS]:
        drafts = f" + {piece['drafts']} drafts" if piece["drafts"] else ""
        style = "yellow" if piece["phase"] == "prefill" else "blue"
        row = (
            str(piece["request"]),
            Text(piece["phase"], style),
            f"{piece['rows']}{drafts}",
            str(piece["position"]),
        )
        table.add_row(*row)
    more = len(step["slices"]) - ROWS
    return [table, *([Text(f"and {more} more")] if more > 0 else [])]
