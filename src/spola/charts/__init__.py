"""Charts as plain SVG and pages as self-contained HTML, from numbers; draws with no library."""

from spola.charts.axes import plain
from spola.charts.page import html_page
from spola.charts.svg import Page, Series, colour

__all__ = ["Page", "Series", "colour", "html_page", "plain"]
