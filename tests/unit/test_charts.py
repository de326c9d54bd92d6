"""Charts: labels of points keep apart, and panels are as high as what is in them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from spola.charts import Page, Series, plain
from spola.charts.axes import short


def placed(svg: str, names: tuple[str, ...]) -> list[tuple[float, float, str]]:
    found = re.findall(r'<text x="([\d.]+)" y="([\d.-]+)"[^>]*>([^<]+)</text>', svg)
    return [(float(x), float(y), name) for x, y, name in found if name in names]


def test_labels_of_near_points_keep_apart() -> None:
    names = ("mlp.up", "mlp.down", "attention.o", "far away")
    page = Page("x")
    near = [(10.0, 5.0, name) for name in names[:3]]
    page.plot("p", [Series("a", near, "dots"), Series("b", [(1.0, 1.0, names[3])], "dots")], "x", "y")
    at = placed(page.render(), names)
    assert len(at) == 4
    rows = sorted(y for _, y, name in at if name != "far away")
    assert all(b - a >= 12 for a, b in pairwise(rows))
    # Two were moved: each has a line to its point.
    assert page.render().count('stroke="#999"/><text') >= 2


def test_a_timeline_is_as_high_as_its_rows() -> None:
    def height(seats: int) -> int:
        page = Page("x", columns=1)
        page.seats("s", [(seat, 0.0, 1.0, "decode") for seat in range(1, seats + 1)], 1.0)
        return int(re.search(r'height="(\d+)"', page.render())[1])  # type: ignore[index]

    assert height(1) < height(4) < height(200) == 290
    page = Page("x")
    page.bars("one", ["a\nb"], [1.0], "u", colours=[3])
    page.seats("s", [(1, 0.0, 1.0, "prefill")], 1.0)
    assert 'height="290"' in page.render()  # the higher of two side by side


@pytest.mark.parametrize(
    ("value", "whole", "label"),
    [
        (0.0, "0", "0"),
        (1110.0, "1,110", "1.11k"),
        (999.7, "1,000", "999.7"),
        (999.96, "1,000", "1k"),
        (12346.0, "12,300", "12.35k"),
        (999_960.0, "1,000,000", "1M"),
        (2e15, "2,000,000,000,000,000", "2,000T"),
        (-1110.0, "-1,110", "-1.11k"),
        (0.25, "0.25", "0.25"),
        (0.00001234, "0.0000123", "0.0000123"),
        (float("inf"), "inf", "inf"),
    ],
)
def test_no_label_has_an_exponent(value: float, whole: str, label: str) -> None:
    assert plain(value) == whole
    assert short(value) == label


def test_no_drawing_has_an_exponent() -> None:
    for large in (0.00002, 1110.0, 98_765.0, 3.2e9):
        page = Page(f"{plain(large)} tok/s")
        page.bars("bars", ["a"], [large], "u")
        page.curve("curve", [(large, large, "a"), (1.0, 1.0, "b")], "x", "y")
        page.plot("plot", [Series("s", [(large, large), (1.0, 2.0)])], "x", "y")
        page.plot("logarithms", [Series("s", [(large, large), (1.0, 2.0)])], "x", "y", log_x=True, log_y=True)
        page.seats("seats", [(1, 0.0, large, "decode")], large)
        texts = re.findall(r"<text[^>]*>([^<]+)</text>", page.render())
        assert len(texts) > 10
        assert not [text for text in texts if re.search(r"\de[+-]?\d", text)]


def test_a_legend_covers_neither_itself_nor_the_name_of_the_axis() -> None:
    names = ("weights", "one request of 4,096 tokens", "and requests of 4,096 tokens", "Q4_0", "IQ4_NL")
    page = Page("x")
    page.plot("p", [Series(name, [(1.0, 2.0), (2.0, 3.0)]) for name in names], "context, tokens", "GB")
    at = placed(page.render(), (*names, "context, tokens"))
    assert len(at) == 6
    axis = next(y for _, y, name in at if name == "context, tokens")
    entries = sorted((y, x, name) for x, y, name in at if name in names)
    assert min(y for y, _, _ in entries) >= axis + 12
    assert max(y for y, _, _ in entries) <= page.height
    assert max(x + 6 * len(name) for _, x, name in entries) <= page.width
    for (y, x, name), (below, right, _) in pairwise(entries):
        assert below >= y + 12 or right >= x + 6 * len(name)


def test_the_value_of_the_highest_bar_is_below_the_unit() -> None:
    page = Page("x")
    page.bars("b", ["a"], [5.0], "a long name of a unit")
    at = placed(page.render(), ("5", "a long name of a unit"))
    unit, value = (next(y for _, y, name in at if name == which) for which in ("a long name of a unit", "5"))
    assert value >= unit + 12
