"""One self-contained HTML page: headings, tables and SVG, styled for light and dark; it loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

__all__ = ["Part", "html_page", "html_table"]

Part = str  # HTML that is already escaped

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 68rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; background: #fff; color: #000; border-radius: 6px; padding: 0.5rem; }
@media (prefers-color-scheme: dark) {
  figure { background: #1d1d1d; color: #eee; }
  figure svg > rect:first-of-type { fill: none; }
  figure svg text { fill: currentColor; }
  figure svg path[stroke="#ddd"] { stroke: #444; }
}
pre { white-space: pre-wrap; font-size: 0.85rem; }
"""


def html_page(title: str, parts: Sequence[Part]) -> str:
    """``parts`` under ``title``."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Part:
    """A table; all cells are plain text."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>\n{body}</tbody></table></div>'
