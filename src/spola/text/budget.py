"""What one rendering of a template may cost: steps, text produced, size and depth of values.

The unit of a step is about a microsecond of Jinja. Values made of shared parts are counted as if the parts
were copied, because printing or comparing them walks every path. Knows nothing of templates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Budget", "LimitError", "current", "spending"]

MAX_STEPS = 20_000_000
MAX_BYTES = 400_000_000  # of all strings made in one rendering, as if none were freed
MAX_DEPTH = 100  # of containers in containers
MAX_WEIGHT = 1_000_000  # of one value, in elements and runs of 64 characters
MAX_INT_BITS = 4096
_CHARS_PER_STEP = 64  # text that is searched or transformed in a microsecond
_MADE_PER_STEP = 512  # text that is copied in well under a microsecond
_WALK_PER_STEP = 16  # elements that C code walks in a microsecond

_EMPTY: dict[str, str] = {}
_DICT_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_CONTAINERS = (list, tuple, dict, set, frozenset, *_DICT_VIEWS)


class LimitError(Exception):
    """A template asked for more than a rendering may cost."""


class Budget:
    """The account of one rendering. Raises LimitError when it is overdrawn.

    ``given`` is what the request hands to the template: the limits grow with it, so that long chats
    render and a short one cannot pay for a long loop.
    """

    def __init__(self, given: Any = ()) -> None:
        # Containers that were measured: id -> (the object, kept alive; weight; depth).
        self._known: dict[int, tuple[Any, int, int]] = {}
        self.steps = 1_000_000_000
        self.max_text = 1 << 40
        weight = self.measure(given)[0]
        # Real templates look at every message from every message, and build the prompt by appending to
        # one string, so both accounts grow with the square, up to a bound.
        self.steps = min(100_000 + 200 * weight + weight * weight // 32, MAX_STEPS)
        self.max_text = 4_000_000 + 512 * weight  # characters of one string, and of the output
        self._bytes_left = min(32_000_000 + 32_000 * weight, MAX_BYTES)

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise LimitError("it takes too many steps")

    def size(self, chars: int) -> None:
        """Refuse a string of ``chars`` characters before it is made."""
        if chars > self.max_text:
            raise LimitError(f"it builds a text of {chars} characters; at most {self.max_text} are possible")

    def text(self, made: str) -> None:
        """Pay for the string ``made``."""
        self.size(len(made))
        self.spend(1 + len(made) // _MADE_PER_STEP)
        self._bytes_left -= sys.getsizeof(made)
        if self._bytes_left < 0:
            raise LimitError("it builds too much text")

    def items(self, n: int) -> None:
        """Refuse ``n`` elements in one container before it is made, pay for them otherwise."""
        if n > MAX_WEIGHT:
            raise LimitError(f"it builds a list of {n} elements")
        self.spend(1 + n // _WALK_PER_STEP)

    def walk(self, value: Any) -> int:
        """Pay for C code that looks at all of ``value`` (printing, comparing); returns its weight."""
        if isinstance(value, str):
            weight = 1 + len(value) // _CHARS_PER_STEP
            self.spend(weight)
        elif isinstance(value, (range, *_CONTAINERS)):
            weight = self.measure(value)[0]
            self.spend(weight // _WALK_PER_STEP)
        else:
            weight = 1
        return weight

    def made(self, value: Any) -> Any:
        """Pay for ``value``, which an operation produced, and return it."""
        if isinstance(value, str):
            self.text(value)
        elif isinstance(value, _CONTAINERS):
            self.measure(value)
        elif isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise LimitError("it computes a number that is too large")
        elif isinstance(value, Iterator):
            return self.counted(value)
        return value

    def counted(self, values: Iterator[Any]) -> Iterator[Any]:
        """``values``, each paid for as it is taken."""
        for value in values:
            self.spend(1)
            yield value

    def measure(self, value: Any) -> tuple[int, int]:
        """(weight, depth) of ``value`` as a tree. Each container is walked once, its parts from memory."""
        if isinstance(value, str):
            return 1 + len(value) // _CHARS_PER_STEP, 0
        if isinstance(value, range):
            return 1 + len(value), 1
        if not isinstance(value, _CONTAINERS):
            return 1, 0
        known = self._known.get(id(value))
        if known is not None and known[0] is value:
            return known[1], known[2]
        self.spend(1 + len(value) // 4)
        weight, depth = 1, 0
        parts: Any = value
        if isinstance(value, dict):
            parts = (part for item in value.items() for part in item)
        for part in parts:
            part_weight, part_depth = self.measure(part)
            weight += part_weight
            depth = max(depth, part_depth)
            if weight > MAX_WEIGHT:
                raise LimitError("it builds a value that is too large")
        depth += 1
        if depth > MAX_DEPTH:
            raise LimitError(f"it nests values more than {MAX_DEPTH} deep")
        self._known[id(value)] = (value, weight, depth)
        return weight, depth


_CURRENT: ContextVar[Budget] = ContextVar("spola_template_budget")


def current() -> Budget:
    """The budget of the rendering that runs in this thread."""
    return _CURRENT.get()


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Make ``budget`` the current one."""
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)
