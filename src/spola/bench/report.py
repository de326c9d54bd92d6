"""A page from JSON results of the benchmarks: HTML with tables and pictures, or one SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spola.bench.pictures import serve_page
from spola.charts import Page, Series, html_page, plain
from spola.charts.page import Part, html_table
from spola.core.errors import ConfigError

__all__ = ["kind_of", "read_result", "report_html", "report_svg"]

Result = Mapping[str, Any]

_KINDS = {
    "serve": {"ttft_ms", "samples", "output_tok_s"},
    "offline": {"prefill", "decode", "machine"},
    "kernels": {"kernels", "machine"},
    "compare": {"rows", "a", "b"},
}


def read_result(path: Path) -> Result:
    """The document at ``path``. Raises ConfigError when it is none of a benchmark's."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict) or kind_of(value) is None:
        raise ConfigError(f"{path} is no result of spola bench {', '.join(_KINDS)}")
    return value


def kind_of(result: Result) -> str | None:
    return next((kind for kind, keys in _KINDS.items() if keys <= set(result)), None)


def report_html(results: Sequence[tuple[str, Result]]) -> str:
    """One section for each (name, result)."""
    parts: list[Part] = []
    for name, result in results:
        kind = kind_of(result)
        heading = f"{kind}: {name}".replace("&", "&amp;").replace("<", "&lt;")
        parts.append(f"<h2>{heading}</h2>")
        parts.append(_TABLES[kind or ""](result))
        page = _page(result)
        if page is not None:
            parts.append(f"<figure>{page.render()}</figure>")
    return html_page("spola bench", parts)


def report_svg(result: Result) -> str:
    """The picture of one result. Raises ConfigError for a kind that has none."""
    page = _page(result)
    if page is None:
        raise ConfigError("a comparison has no picture: write a .html page instead")
    return page.render()


def _page(result: Result) -> Page | None:
    match kind_of(result):
        case "serve":
            return serve_page(result)
        case "offline":
            return _offline_page(result)
        case "kernels":
            return _kernels_page(result)
    return None


def _serve_table(result: Result) -> Part:
    rows = [
        [name, *(_n(result[f"{name}_ms"].get(key)) for key in ("mean", "p50", "p95", "p99"))]
        for name in ("ttft", "tpot", "itl", "latency")
    ]
    rows.append(["output tok/s", _n(result["output_tok_s"]), "", "", ""])
    rows.append(["requests", str(result["requests"]), f"{result['failed']} failed", "", ""])
    return html_table(["ms", "mean", "p50", "p95", "p99"], rows)


def _offline_table(result: Result) -> Part:
    rows = [_speed_row(f"prefill {result['prefill']['tokens']}", result["prefill"])]
    rows += [_speed_row(f"decode {row['batch']} at {row['depth']}", row) for row in result["decode"]]
    return html_table([str(result["model"]), "tok/s", "least", "most", "of the roofline"], rows)


def _speed_row(name: str, row: Result) -> list[str]:
    return [name, _n(row["tok_s"]), _n(row["tok_s_min"]), _n(row["tok_s_max"]), f"{row['roofline']:.0%}"]


def _kernels_table(result: Result) -> Part:
    rows = [
        [
            row["type"],
            f"{row['rows']} x {row['columns']}",
            str(row["m"]),
            _n(row["gmac_s"]),
            f"{row.get('of_ceiling', row['of_peak']):.0%}",  # files of earlier versions have only the peak
        ]
        for row in result["kernels"]
    ]
    return html_table(["type", "matrix", "rows", "GMAC/s", "of the ceiling"], rows)


def _compare_table(result: Result) -> Part:
    rows = [
        [
            row["what"],
            _n(row["a"]),
            _n(row["b"]),
            _n(row["ratio"]),
            f"{_n(row['ratio_min'])} to {_n(row['ratio_max'])}",
            row["verdict"],
        ]
        for row in result["rows"]
    ]
    return html_table(["", f"a: {result['a']}", f"b: {result['b']}", "b / a", "spread", ""], rows)


_TABLES = {
    "serve": _serve_table,
    "offline": _offline_table,
    "kernels": _kernels_table,
    "compare": _compare_table,
}


def _offline_page(result: Result) -> Page:
    page = Page(f"{result['model']}, {result['threads']} threads")
    points = [(row["batch"], row["tok_s"]) for row in result["decode"]]
    page.plot("Decode", [Series("tok/s", points)], "requests at a time", "tok/s")
    tpot = [(1e3 * row["batch"] / row["tok_s"], row["tok_s"], str(row["batch"])) for row in result["decode"]]
    page.curve("Throughput against TPOT, by batch size", tpot, "TPOT, ms", "tok/s")
    return page


def _kernels_page(result: Result) -> Page:
    page = Page("Linear kernels, one thread")
    series: dict[str, list[tuple[float, float]]] = {}
    for row in result["kernels"]:
        if row["columns"] == result["kernels"][0]["columns"] and row["rows"] == result["kernels"][0]["rows"]:
            series.setdefault(row["type"], []).append((row["m"], row["gmac_s"]))
    shown = [Series(name, points) for name, points in series.items()]
    for first in range(0, len(shown), 4):
        page.plot("Speed by activation rows", shown[first : first + 4], "rows", "GMAC/s", log_x=True)
    return page


def _n(value: float | None) -> str:
    return "-" if value is None else plain(value, 4)
