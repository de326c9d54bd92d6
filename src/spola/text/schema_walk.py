"""JSON Schemas before they are compiled: their size, and where in them a fault is.

``check_schema`` bounds what a hostile schema can cost; ``find`` turns the compiler's complaint into a JSON
pointer (RFC 6901), so that the answer says which keyword is not supported. Compiles nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from spola.core.errors import RequestError
from spola.text.regex_cost import check_regex
from spola.text.schema_formats import spelled_out

__all__ = ["check_schema", "fault", "schema_text", "subschemas"]

MAX_TEXT = 256 * 1024
MAX_DEPTH = 100  # of values inside values; the compiler's own bound is 128
MAX_NODES = 20_000
MAX_PROPERTIES = 1024  # of one object: optional ones cost their square
MAX_ENUM = 10_000

# Keywords whose value is a schema, a list of them, or a map to them.
_ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")

_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
# What the compiler complains of -> the keywords it may be about; the group is what stands in their value.
_CLUES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"Unknown format: (\S*)"), ("format",)),
    (re.compile(r"Invalid type: (.*)"), ("type",)),
    (re.compile(r"Pointer '([^']*)' does not exist"), ("$ref",)),
    (re.compile(r"Resource '([^']*)'"), ("$ref", "$schema", "$id", "id")),
    (re.compile(r"Anchor '([^']*)'"), ("$ref", "$dynamicRef")),
    (re.compile(r"circular references.*(#\S*)"), ("$ref",)),
    (re.compile(r"patternProperty regexes /(.*?)/ and"), ("patternProperties",)),
    (re.compile(r"regex parse error:\s*(\S+)"), ("pattern", "patternProperties")),
    (re.compile(r"for '(?:\w+)'|min/maxProperties|(?:float|integer) range"), ()),
    (re.compile("oneOf constraints"), ("oneOf",)),
    (re.compile("if regex is empty|intersection"), ("allOf", "$ref", "anyOf")),
    (re.compile(r"ref.*?'([^']*)'"), ("$ref",)),
)
_QUOTED = re.compile(r"for '(\w+)'")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

Error = Callable[[str], RequestError]


def schema_text(schema: Any, error: Error) -> str:
    """``schema`` (decoded, or its text) as JSON text. Raises ``error`` for what is no schema."""
    if isinstance(schema, str):
        if len(schema) > MAX_TEXT:
            raise error(f"the schema has more than {MAX_TEXT} characters")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as reason:
            raise error(f"the schema is not valid JSON: {reason}") from None
    if isinstance(schema, bool):
        if not schema:
            raise error("at /: nothing validates against the schema false")
        return "{}"
    if not isinstance(schema, dict):
        raise error("the schema must be an object or a boolean")
    check_schema(schema, error)
    return json.dumps(spelled_out(schema), ensure_ascii=False)


def check_schema(schema: dict[str, Any], error: Error) -> None:
    """Raise ``error`` with the place for a schema that would cost too much to compile or to follow."""
    nodes, text = 0, 0
    stack: list[tuple[str, Any, int]] = [("", schema, 0)]
    while stack:
        place, value, depth = stack.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise error(f"the schema has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise error(f"at {_shown(place)}: the schema is nested deeper than {MAX_DEPTH}")
        if isinstance(value, str):
            text += len(value)
        elif isinstance(value, dict):
            text += sum(map(len, value))
            stack += ((f"{place}/{_escaped(name)}", item, depth + 1) for name, item in value.items())
        elif isinstance(value, list):
            stack += ((f"{place}/{i}", item, depth + 1) for i, item in enumerate(value))
        if text > MAX_TEXT:
            raise error(f"the schema has more than {MAX_TEXT} characters")
    for place, part in subschemas(schema):
        _check_part(place, part, error)


def _check_part(place: str, part: Any, error: Error) -> None:
    if not isinstance(part, dict):
        if not isinstance(part, bool):
            raise error(f"at {_shown(place)}: a schema must be an object or a boolean")
        return
    for name, most in (
        ("properties", MAX_PROPERTIES),
        ("patternProperties", MAX_PROPERTIES),
        ("enum", MAX_ENUM),
    ):
        found = part.get(name)
        if isinstance(found, (dict, list)) and len(found) > most:
            raise error(f"at {place}/{name}: more than {most} entries")
    if part.get("enum") == []:
        raise error(f"at {place}/enum: is empty, so that nothing validates")
    patterns = {"pattern": part.get("pattern")}
    named = part.get("patternProperties")
    if isinstance(named, dict):
        patterns |= {f"patternProperties/{_escaped(name)}": name for name in named}
    for name, pattern in patterns.items():
        if isinstance(pattern, str):
            _check_pattern(f"{place}/{name}", pattern, error)


def _check_pattern(place: str, pattern: str, error: Error) -> None:
    def placed(what: str) -> RequestError:
        return error(f"at {place}: {what}")

    check_regex(pattern, placed)


def subschemas(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema inside ``schema`` with its JSON pointer, the outermost first."""
    stack = [(place, schema)]
    while stack:
        place, part = stack.pop()
        yield place, part
        if not isinstance(part, dict):
            continue
        inner: list[tuple[str, Any]] = []
        for name, value in part.items():
            at = f"{place}/{_escaped(name)}"
            if name in _MAP and isinstance(value, dict):
                inner += ((f"{at}/{_escaped(key)}", item) for key, item in value.items())
            elif name in _LIST and isinstance(value, list):
                inner += ((f"{at}/{i}", item) for i, item in enumerate(value))
            elif name in _ONE and isinstance(value, (dict, bool)):
                inner.append((at, value))
        stack += reversed(inner)


def fault(schema: dict[str, Any], said: str) -> str:
    """The compiler's complaint with the JSON pointer of what it is about, in one line."""
    keys = _KEYS.search(said)
    if keys is not None:
        names = [name.strip().strip('"') for name in keys[1].split(",")]
        for place, part in subschemas(schema):
            found = [name for name in names if isinstance(part, dict) and name in part]
            if found:
                where = f"{place}/{_escaped(found[0])}"
                return f"at {where}: the keyword {found[0]!r} is not supported"
        return f"at /: the keyword {names[0]!r} is not supported here"
    for clue, keywords in _CLUES:
        match = clue.search(said)
        if match is not None:
            wanted = (match[1] if clue.groups else "") or ""
            where = _place_of(schema, keywords or _named(said), wanted.strip("\"'"))
            if where:
                return f"at {where}: {_line(said)}"
    if "schema is false" in said:
        where = next((place for place, part in subschemas(schema) if part is False), "")
        return f"at {_shown(where)}: {_line(said)}"
    return f"at /: {_line(said)}"


def _named(said: str) -> tuple[str, ...]:
    """The keywords of sizes and bounds that a complaint names."""
    quoted = _QUOTED.search(said)
    if quoted is not None:
        return (quoted[1],)
    return ("minProperties", "maxProperties") if "maxProperties" in said else _BOUNDS


def _place_of(schema: dict[str, Any], keywords: tuple[str, ...], wanted: str) -> str:
    """The pointer of the first of ``keywords`` whose value mentions ``wanted``, or nothing."""
    for keyword in keywords:
        for place, part in subschemas(schema):
            if isinstance(part, dict) and keyword in part and _mentions(part[keyword], wanted):
                return f"{place}/{_escaped(keyword)}"
    return ""


def _mentions(value: Any, wanted: str) -> bool:
    if not wanted or isinstance(value, bool):
        return True
    if isinstance(value, str):
        # A relative reference is complained of as the address it stands for.
        return wanted in value or (
            len(value) > 1 and wanted.endswith(value.lstrip("./").partition("#")[0] or value)
        )
    return isinstance(value, (dict, list)) and any(isinstance(item, str) and wanted in item for item in value)


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


def _escaped(name: str) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")[:200]


def _shown(place: str) -> str:
    return place[:300] or "/"
