"""Plain SVG: bars, plots with axes, and charts of seats over time, in one page of panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from spola.charts.axes import Axis, plain, short

__all__ = ["Page", "Series", "colour"]

COLOURS = ("#4878a8", "#e08214", "#5aae61", "#b2568c", "#777777")
PREFILL, DECODE = "#e08214", "#4878a8"
FONT = 'font-family="sans-serif" font-size="11"'


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) or (x, y, label) of a plot, joined by a line, or dots."""

    name: str
    points: Sequence[tuple[float, float] | tuple[float, float, str]]
    kind: Literal["line", "dots"] = "line"


class Page:
    """Panels of ``width`` x ``height`` points, ``columns`` side by side."""

    def __init__(self, title: str, *, width: int = 420, height: int = 250, columns: int = 2) -> None:
        self.title = title
        self.width, self.height, self.columns = width, height, columns
        self._panels: list[tuple[str, float]] = []  # and their heights

    def bars(
        self,
        title: str,
        names: Sequence[str],
        values: Sequence[float],
        unit: str,
        *,
        colours: Sequence[int] | None = None,
    ) -> None:
        """One bar per name, its value above it; a name may have lines.

        The n-th bar has the n-th colour, or the one in ``colours``.
        """
        top = max(values, default=0.0) or 1.0
        left, bottom, tall = 50, self.height - 40, self.height - 102  # the highest value is below the unit
        wide = (self.width - left - 20) / max(len(names), 1)
        parts = [_text(10, 20, title, bold=True), _text(10, 36, unit)]
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            x, high = left + i * wide, tall * value / top
            parts.append(_rect(x, bottom - high, wide * 0.7, high, colour(colours[i] if colours else i)))
            parts.append(_text(x + wide * 0.35, bottom - high - 5, plain(value), anchor="middle"))
            for n, line in enumerate(name.split("\n")):
                parts.append(_text(x + wide * 0.35, bottom + 15 + 14 * n, line, anchor="middle"))
        self._add(parts)

    def curve(self, title: str, points: Sequence[tuple[float, float, str]], x_name: str, y_name: str) -> None:
        """Labelled points joined by a line, both axes from 0."""
        right = max((x for x, _, _ in points), default=0.0) or 1.0
        top = max((y for _, y, _ in points), default=0.0) or 1.0
        left, bottom, wide, tall = 60, self.height - 40, self.width - 100, self.height - 90
        at = [(left + wide * x / right, bottom - tall * y / top, name) for x, y, name in points]
        parts = [_text(10, 20, title, bold=True), _text(10, 36, f"{y_name} (up) over {x_name}")]
        parts.append(f'<path d="M{left} {bottom - tall}V{bottom}H{left + wide}" fill="none" stroke="#999"/>')
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour(0)}" stroke-width="2"/>')
        for x, y, name in at:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(0)}"/>')
            parts.append(_text(x + 5, y + 12, name))
        parts.append(_text(left + wide, bottom + 15, plain(right), anchor="end"))
        parts.append(_text(left - 5, bottom - tall + 4, plain(top), anchor="end"))
        self._add(parts)

    def plot(
        self,
        title: str,
        series: Sequence[Series],
        x_name: str,
        y_name: str,
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        """Any number of series on common axes with ticks; values that no logarithm has are left out."""
        legend = _legend([one.name for one in series], self.width - 80) if len(series) > 1 else []
        left, top, bottom = (
            56,
            46,
            self.height - 44 - 15 * (1 + max((row for _, row, _ in legend), default=-1)),
        )
        every = [point for one in series for point in one.points]
        across = Axis.over((p[0] for p in every), self.width - left - 24, log=log_x)
        up = Axis.over((p[1] for p in every), bottom - top, log=log_y)
        parts = [_text(10, 20, title, bold=True), _text(10, 36, y_name)]
        for tick in up.ticks():
            y = bottom - up.at(tick)
            parts.append(f'<path d="M{left} {y:.1f}h{across.length:.1f}" stroke="#ddd"/>')
            parts.append(_text(left - 5, y + 4, short(tick), anchor="end"))
        for tick in across.ticks():
            x = left + across.at(tick)
            parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="#999"/>')
            parts.append(_text(x, bottom + 16, short(tick), anchor="middle"))
        parts.append(f'<path d="M{left} {top}V{bottom}h{across.length:.1f}" fill="none" stroke="#999"/>')
        parts.append(_text(left + across.length, bottom + 32, x_name, anchor="end"))
        labels = _Labels()
        for i, one in enumerate(series):
            parts += self._series(one, i, across, up, left, bottom, labels)
        for i, (x, row, name) in enumerate(legend):
            parts.append(_rect(left + x, bottom + 39 + 15 * row, 9, 9, colour(i)))
            parts.append(_text(left + x + 13, bottom + 47 + 15 * row, name))
        self._add(parts)

    @staticmethod
    def _series(
        one: Series, i: int, across: Axis, up: Axis, left: float, bottom: float, labels: _Labels
    ) -> list[str]:
        shown = [p for p in one.points if (p[0] > 0 or not across.log) and (p[1] > 0 or not up.log)]
        at = [(left + across.at(p[0]), bottom - up.at(p[1])) for p in shown]
        parts = []
        if one.kind == "line":
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour(i)}" stroke-width="2"/>')
        else:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour(i)}" fill-opacity="0.7"/>'
                for x, y in at
            ]
        for (x, y), point in zip(at, shown, strict=True):
            if len(point) == 3 and point[2]:
                parts.append(labels.put(x, y, point[2]))
        return parts

    def stacked(self, title: str, parts: Sequence[tuple[str, float]]) -> None:
        """Horizontal bars of shares, each with its name; shares are of 1."""
        left, top, high = 240, 46, (self.height - 60) / max(len(parts), 1)
        wide = self.width - left - 80
        drawn = [_text(10, 20, title, bold=True)]
        for i, (name, share) in enumerate(parts):
            y = top + i * high
            drawn.append(_rect(left, y, wide * share, high * 0.7, colour(i)))
            drawn.append(_text(left - 6, y + high * 0.5, name, anchor="end"))
            drawn.append(_text(left + wide * share + 5, y + high * 0.5, f"{share:.1%}"))
        self._add(drawn)

    def seats(self, title: str, pieces: Sequence[tuple[int, float, float, str]], end: float) -> None:
        """Rows of seats over time: (seat from 1, start, length, prefill or decode)."""
        rows = max((seat for seat, *_ in pieces), default=1)
        left, wide, tall = 10, self.width - 30, self.height - 80
        parts = [_text(10, 20, title, bold=True), _text(10, 36, f"one row a seat, 0 to {plain(end)} s")]
        high = min(tall / rows, 24.0)
        for seat, start, length, kind in pieces:
            fill = PREFILL if kind == "prefill" else DECODE
            x, y = left + wide * start / end, 46 + (seat - 1) * high
            parts.append(_rect(x, y, max(wide * length / end, 0.2), high * 0.8, fill))
        height = min(float(self.height), 46 + rows * high + 34)
        low = height - 18
        for i, (name, fill) in enumerate((("prefill", PREFILL), ("decode", DECODE))):
            parts += [_rect(left + 80 * i, low - 9, 10, 10, fill), _text(left + 14 + 80 * i, low, name)]
        self._add(parts, height)

    def render(self) -> str:
        lines = [self._panels[i : i + self.columns] for i in range(0, len(self._panels), self.columns)]
        tops = [40.0]
        for line in lines:
            tops.append(tops[-1] + max(height for _, height in line))
        wide, high = self.columns * self.width, round(tops[-1])
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" {FONT}>',
            _rect(0, 0, wide, high, "#ffffff"),
            _text(10, 24, self.title, bold=True),
        ]
        for line, top in zip(lines, tops, strict=False):
            for i, (panel, _) in enumerate(line):
                parts.append(f'<g transform="translate({i * self.width} {top:g})">{panel}</g>')
        return "\n".join([*parts, "</svg>", ""])

    def _add(self, parts: Sequence[str], height: float | None = None) -> None:
        self._panels.append(("".join(parts), height or float(self.height)))


class _Labels:
    """Labels of points, each moved up or down until it covers no other; a line joins it to its point."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float]] = []  # left, right, baseline

    def put(self, x: float, y: float, text: str) -> str:
        left, right = x + 5, x + 5 + 6 * len(text)
        moves = [12.0 * n * sign for n in range(len(self._taken) + 1) for sign in (1, -1)]
        base = next(y - 5 + move for move in moves if self._free(left, right, y - 5 + move))
        self._taken.append((left, right, base))
        label = _text(left, base, text)
        if abs(base - y + 5) < 1:
            return label
        return f'<path d="M{x:.1f} {y:.1f}L{left:.1f} {base - 4:.1f}" stroke="#999"/>{label}'

    def _free(self, left: float, right: float, base: float) -> bool:
        return all(right < a or b < left or abs(base - at) >= 12 for a, b, at in self._taken)


def _legend(names: Sequence[str], width: float) -> list[tuple[float, int, str]]:
    """(from the left, line, name) of each, as many to a line as have room in ``width``."""
    out: list[tuple[float, int, str]] = []
    at, row = 0.0, 0
    for name in names:
        wide = 13 + 6.5 * len(name) + 14
        if at and at + wide > width:
            at, row = 0.0, row + 1
        out.append((at, row, name))
        at += wide
    return out


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _rect(x: float, y: float, wide: float, high: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{fill}"/>'
