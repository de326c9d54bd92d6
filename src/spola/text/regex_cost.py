"""What a regular expression may cost: bounds found by reading it, before anything is compiled.

Counted repeats multiply when nested, and each copy is a state; ``a{1000000}`` is ten characters. Whether the
expression is valid is the compiler's word.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spola.core.errors import RequestError

__all__ = ["check_regex"]

MAX_TEXT = 16 * 1024
MAX_REPEATS = 50_000  # copies that counted repeats make, nested ones multiplied
MAX_NESTED = 100
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


def check_regex(pattern: str, error: Callable[[str], RequestError]) -> None:
    """Raise ``error`` when ``pattern`` is too long or stands for too many states."""
    if len(pattern) > MAX_TEXT:
        raise error(f"the expression has more than {MAX_TEXT} characters")
    # Per open group: how many states its content has so far.
    sizes = [0]
    last = 0  # states of what a repeat would repeat
    at = 0
    while at < len(pattern):
        char = pattern[at]
        step = 1
        if char == "(":
            if len(sizes) > MAX_NESTED:
                raise error(f"groups are nested deeper than {MAX_NESTED}")
            sizes.append(0)
            last = 0
        elif char == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif char == "[":
            step = _class_end(pattern, at) - at
            last = 1
            sizes[-1] += 1
        elif char == "{" and (count := _COUNT.match(pattern, at)):
            step = count.end() - at
            most = max(int(number[:9]) for number in (count[1] or "0", count[2] or "0"))
            more = last * max(0, most - 1)
            sizes[-1] += more
            last += more
        else:
            step = 2 if char == "\\" else 1
            last = 1
            sizes[-1] += 1
        if sizes[-1] > MAX_REPEATS + len(pattern):
            raise error(f"counted repeats stand for more than {MAX_REPEATS} copies")
        at += step


def _class_end(pattern: str, at: int) -> int:
    """The position behind the character class that opens at ``at``."""
    at += 1
    if pattern.startswith("^", at):
        at += 1
    if pattern.startswith("]", at):
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
