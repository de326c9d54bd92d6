"""A profile as a table for a terminal, a Chrome trace, and one self-contained HTML page with its roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spola.charts import Page, Series, html_page, plain
from spola.charts.page import html_table
from spola.core.trace import TraceWriter

__all__ = ["profile_html", "profile_table", "write_trace"]

Profile = Mapping[str, Any]

_HEAD = ("operation", "ms", "share", "MB", "GB/s", "GMAC", "GMAC/s", "of roofline")


def profile_table(profile: Profile) -> Iterator[str]:
    """Lines for a terminal: each phase, its operations by falling time."""
    machine = profile["machine"]
    yield (
        f"{profile['model']}, {profile['threads']} threads, {profile['isa']}: "
        f"reads {machine['read_gb_s']:.1f} GB/s, int8 {machine['int8_gops']:.0f} Gop/s, "
        f"f32 {machine['f32_gflops']:.0f} Gflop/s"
    )
    for name, phase in profile["phases"].items():
        yield ""
        yield (
            f"{name}: {phase['seconds'] * 1e3:.2f} ms, {phase['steps']} steps, {phase['tokens']} tokens, "
            f"{phase['tok_s']:.1f} tok/s"
        )
        yield f"  {_HEAD[0]:<44}" + "".join(f"{title:>12}" for title in _HEAD[1:])
        for row in phase["operations"]:
            cells = _cells(row)
            yield f"  {cells[0]:<44}" + "".join(f"{cell:>12}" for cell in cells[1:])


def _cells(row: Mapping[str, Any]) -> list[str]:
    seconds = row["seconds"]
    rate = seconds if seconds > 0 else float("inf")
    return [
        row["operation"],
        f"{seconds * 1e3:.3f}",
        f"{row['share']:.1%}",
        f"{row['bytes'] / 1e6:.2f}" if row["bytes"] else "-",
        f"{row['bytes'] / rate / 1e9:.1f}" if row["bytes"] else "-",
        f"{row['macs'] / 1e9:.3f}" if row["macs"] else "-",
        f"{row['macs'] / rate / 1e9:.1f}" if row["macs"] else "-",
        "-" if row["roofline"] is None else f"{row['roofline']:.0%}",
    ]


def profile_html(profile: Profile) -> str:
    """One page that loads nothing: tables, the roofline, where the time went, and the steps over time."""
    parts = [f"<pre>{_escape(next(profile_table(profile)))}</pre>"]
    page = Page(f"{profile['model']}: roofline and time by operation", width=640, height=360, columns=1)
    _roofline(page, profile)
    for name, phase in profile["phases"].items():
        _bars(page, name, phase)
        pieces = _pieces(phase)
        end = max(start + length for _, start, length, _ in pieces)
        page.seats(f"{name}: requests over time", pieces, end)
    parts.append(f"<figure>{page.render()}</figure>")
    for name, phase in profile["phases"].items():
        title = f"{name}: {phase['seconds'] * 1e3:.2f} ms, {phase['tok_s']:.1f} tok/s"
        parts.append(f"<h2>{_escape(title)}</h2>")
        parts.append(html_table(_HEAD, [_cells(row) for row in phase["operations"]]))
    return html_page(f"spola profile: {profile['model']}", parts)


def _roofline(page: Page, profile: Profile) -> None:
    """Operations per second over operations per byte, below what this machine allows."""
    machine = profile["machine"]
    read = machine["read_gb_s"] * 1e9
    series = []
    for name, peak in (("int8 roof", machine["int8_gops"]), ("f32 roof", machine["f32_gflops"])):
        top = peak * 1e9
        series.append(Series(name, [(0.1, 0.1 * read), (top / read, top), (1e4, top)]))
    for name, phase in profile["phases"].items():
        points = [
            (2 * row["macs"] / row["bytes"], 2 * row["macs"] / row["seconds"], row["operation"].split()[-1])
            for row in phase["operations"]
            if row["macs"] and row["bytes"] and row["seconds"] > 0 and row["share"] > 0.02
        ]
        series.append(Series(name, points, "dots"))
    page.plot("Roofline", series, "operations per byte", "operations per second", log_x=True, log_y=True)


def _bars(page: Page, name: str, phase: Mapping[str, Any]) -> None:
    rows = phase["operations"][:8]
    page.stacked(
        f"{name}: where {plain(phase['seconds'] * 1e3)} ms go",
        [(row["operation"], row["share"]) for row in rows],
    )


def _pieces(phase: Mapping[str, Any]) -> list[tuple[int, float, float, str]]:
    seats: dict[int, int] = {}
    pieces = []
    for step in phase["timeline"]:
        for piece in step["slices"]:
            seat = seats.setdefault(piece["request"], len(seats) + 1)
            pieces.append((seat, step["start_s"], step["elapsed_s"], piece["phase"]))
    return pieces


def write_trace(profile: Profile, path: Path) -> str | None:
    """The steps and, inside each, its mean operations, for ui.perfetto.dev; why it is not whole, if so.

    The native decoder adds up an operation over all layers and steps of a phase: inside a step each is drawn
    with its share, not at the moment it ran. Raises ConfigError when ``path`` cannot be written.
    """
    trace = TraceWriter(path)
    trace.group(1, "spola profile")
    offset = 0.0
    for row, (name, phase) in enumerate(profile["phases"].items(), start=1):
        trace.row(1, 2 * row, f"{name}: steps")
        trace.row(1, 2 * row + 1, f"{name}: operations, by their shares")
        end = 0.0
        for step in phase["timeline"]:
            start = offset + step["start_s"]
            rows = sum(piece["rows"] for piece in step["slices"])
            trace.span(f"{name} {rows} rows", start, step["elapsed_s"], 1, 2 * row, {"rows": rows})
            at = start
            for operation in phase["operations"]:
                length = step["elapsed_s"] * operation["share"]
                args = {key: operation[key] for key in ("share", "bytes", "macs")}
                trace.span(operation["operation"], at, length, 1, 2 * row + 1, args)
                at += length
            end = step["start_s"] + step["elapsed_s"]
        offset += end
    trace.close()
    return trace.failure


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
