"""The filters and tests that chat templates may use, each paying for what it touches and makes.

Jinja's own where they are harmless once their arguments are checked; ours where one call could ask for
more memory than there is. ``tojson`` writes plain UTF-8 as ``transformers`` does. Not here: operators,
loops and methods (``text.sandbox``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, Undefined, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter

from spola.text.budget import current

__all__ = ["bounded_filters", "bounded_tests", "percent", "text_of"]

Function = Callable[..., Any]

# Filters that only take a container apart or pick from it.
_SHALLOW = frozenset(
    (
        "batch",
        "count",
        "d",
        "default",
        "first",
        "items",
        "last",
        "length",
        "list",
        "map",
        "reject",
        "rejectattr",
        "reverse",
        "select",
        "selectattr",
        "slice",
    )
)
# Filters that may print, compare or hash all of their arguments.
_DEEP = frozenset(
    (
        "abs",
        "capitalize",
        "center",
        "dictsort",
        "e",
        "escape",
        "float",
        "groupby",
        "int",
        "lower",
        "max",
        "min",
        "round",
        "safe",
        "sort",
        "sum",
        "title",
        "trim",
        "truncate",
        "unique",
        "upper",
        "wordcount",
    )
)
# Filters that run other filters or tests on every element, also on those that do not come out.
_EACH = frozenset(("map", "reject", "rejectattr", "select", "selectattr"))
# Filters that look at every element in Python; a text's elements are its characters.
_ITERATING = frozenset(("batch", "groupby", "max", "min", "slice", "sort", "sum", "unique"))
# How much more than a copy of its argument a filter costs.
_SLOW = {"title": 32, "wordcount": 32, "truncate": 8, "sort": 8, "dictsort": 8, "groupby": 8, "unique": 8}
_SLOW |= {"min": 8, "max": 8, "sum": 4}
# Where the name of an attribute stands among the arguments, after the environment and the value.
_ATTRIBUTE = {"selectattr": 2, "rejectattr": 2, "groupby": 2, "sum": 2}
_ATTRIBUTE |= {"unique": 3, "min": 3, "max": 3, "sort": 4}
_MAX_PATH = 16  # parts of such a name
# The largest whole number that an argument may be.
_LARGEST = {"batch": 100_000, "slice": 100_000, "center": 10_000, "round": 100}
_COMPARING_TESTS = frozenset(
    (
        "in",
        "eq",
        "==",
        "equalto",
        "ne",
        "!=",
        "lt",
        "<",
        "lessthan",
        "le",
        "<=",
        "gt",
        ">",
        "greaterthan",
        "ge",
        ">=",
        "lower",
        "upper",
    )
)
_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")


def text_of(value: Any) -> str:
    """``str(value)``, paid for before it is made."""
    if isinstance(value, str):
        return value
    budget = current()
    budget.size(64 * budget.walk(value))
    text = str(value)
    budget.text(text)
    return text


def percent(template: str, values: Any) -> str:
    """``template % values`` with widths of at most three digits."""
    fields = 1
    for match in _PERCENT.finditer(template):
        fields += 1
        if any(number == "*" or len(number) > 3 for number in match.groups() if number):
            raise SecurityError("a width of more than three digits in %")
    budget = current()
    budget.size(len(template) + 1000 * fields + 64 * fields * budget.walk(values))
    return budget.made(template % values)  # type: ignore[no-any-return]


def bounded_filters(originals: Mapping[str, Function]) -> dict[str, Function]:
    """The allowed filters by name; ``originals`` are Jinja's."""
    filters = {name: _bounded(name, originals[name], deep=False) for name in _SHALLOW}
    filters |= {name: _bounded(name, originals[name], deep=True) for name in _DEEP}
    filters |= {"format": _format, "indent": _indent, "join": _join, "replace": _replace}
    return filters | {"string": text_of, "tojson": _tojson}


def bounded_tests(originals: Mapping[str, Function]) -> dict[str, Function]:
    """All of Jinja's tests; those that compare pay for what they compare."""
    return {
        name: _bounded(name, test, deep=True) if name in _COMPARING_TESTS else test
        for name, test in originals.items()
    }


def _bounded(name: str, function: Function, *, deep: bool) -> Function:
    largest = _LARGEST.get(name)
    attribute = _ATTRIBUTE.get(name, 0)
    slow = _SLOW.get(name, 0)

    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.spend(2 + len(args) // 2 + len(kwargs) // 2)
        _check_path(kwargs.get("attribute"))
        if 0 < attribute < len(args):
            _check_path(args[attribute])
        if name == "sum" and not isinstance(
            kwargs.get("start", args[3] if len(args) > 3 else 0), (int, float)
        ):
            raise SecurityError("sum() of anything but numbers")
        args = tuple(_taken(arg, deep, largest) for arg in args)
        if name in _EACH and len(args) > 1 and isinstance(args[1], (str, list, tuple, dict, range)):
            args = (args[0], budget.counted(iter(args[1])), *args[2:])
        if name in _ITERATING:
            budget.spend(sum(len(arg) for arg in args[:2] if isinstance(arg, str)) // 2)
        if slow:
            budget.spend(slow * budget.walk(args) // 16)
        kwargs = {key: _taken(arg, deep, largest) for key, arg in kwargs.items()}
        return budget.made(function(*args, **kwargs))

    return paying


def _check_path(attribute: Any) -> None:
    """Every part of ``attribute`` costs a look-up in every element."""
    if isinstance(attribute, str) and attribute.count(".") + attribute.count(",") >= _MAX_PATH:
        raise SecurityError(f"an attribute of more than {_MAX_PATH} parts")


def _taken(value: Any, deep: bool, largest: int | None) -> Any:
    budget = current()
    if largest is not None and isinstance(value, int) and abs(value) > largest:
        raise SecurityError(f"an argument of {value}")
    if largest is not None and isinstance(value, int):
        budget.spend(abs(value) // 16)
    if isinstance(value, Iterator):
        return budget.counted(value)
    if deep or isinstance(value, str):
        budget.walk(value)
    elif isinstance(value, (list, tuple, dict, range)):
        budget.items(len(value))
    return value


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format() takes positional or keyword arguments, not both")
    return percent(text_of(value), kwargs or args)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(value)
    if isinstance(width, int) and width > 1000:
        raise SecurityError(f"an indentation of {width}")
    lead = width if isinstance(width, str) else " " * width
    budget = current()
    budget.size(len(text) + len(lead) * (1 + text.count("\n")))
    # As Jinja does: the lines are joined anew, so a final newline goes unless blank lines are indented.
    if blank:
        out = f"\n{lead}".join(f"{text}\n".splitlines())
    else:
        lines = f"{text}\n".splitlines()
        out = "\n".join(lines[:1] + [lead + line if line else line for line in lines[1:]])
    return budget.made(lead + out if first else out)  # type: ignore[no-any-return]


@pass_environment
def _join(environment: Environment, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    budget = current()
    values = budget.counted(iter(value))
    if attribute is not None:
        _check_path(attribute)
        values = map(make_attrgetter(environment, attribute), values)
    separator = text_of(d)
    texts, chars = [], 0
    for item in values:
        texts.append(text_of(item))
        chars += len(texts[-1]) + len(separator)
        budget.size(chars)
    return budget.made(separator.join(texts))  # type: ignore[no-any-return]


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    budget = current()
    budget.walk(text)
    budget.size(len(text) + text.count(old) * max(0, len(new) - len(old)))
    return budget.made(text.replace(old, new, -1 if count is None else count))  # type: ignore[no-any-return]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as ``transformers`` writes it into prompts: plain UTF-8, no HTML escapes, keys in order."""
    if (indent if isinstance(indent, int) else len(indent or "")) > 16:
        raise SecurityError(f"an indentation of {indent!r} in tojson")
    if separators is not None and sum(map(len, separators)) > 32:
        raise SecurityError("long separators in tojson")
    if isinstance(value, Undefined):
        raise TypeError("Object of type Undefined is not JSON serializable")
    budget = current()
    budget.walk(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    parts, chars = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        chars += len(part)
        budget.spend(1)
        budget.size(chars)
    return budget.made("".join(parts))  # type: ignore[no-any-return]
