"""What the compiler reads otherwise than JSON Schema means it, spelled out: formats as patterns, 2.0 as 2.

It takes 2021-02-29 for a date and any :60 for a leap second. RFC 3339 asks for days that exist; whether a
second is a leap second is not in the text, so none is written. A count of 2.0 it refuses.
"""

from __future__ import annotations

from typing import Any

__all__ = ["spelled_out"]

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAYS}|{_LEAP}-02-29)"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_PATTERNS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}


def spelled_out(schema: Any) -> Any:
    """``schema`` with the formats above as patterns, and whole numbers where they count.

    The word ``format`` may also be the name of a property; only a string there is a format.
    """
    if isinstance(schema, list):
        return [spelled_out(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # What stands in these is data, not schemas.
    out = {
        name: value if name in ("const", "enum", "default", "examples") else spelled_out(value)
        for name, value in schema.items()
    }
    for name in _COUNTS:
        count = out.get(name)
        if isinstance(count, float) and count.is_integer():
            out[name] = int(count)
    pattern = _PATTERNS.get(out["format"]) if isinstance(out.get("format"), str) else None
    if pattern is None:
        return out
    del out["format"]
    anchored = f"^{pattern}$"
    if "pattern" not in out:
        return {**out, "pattern": anchored}
    return {**out, "allOf": [*out.get("allOf", ()), {"pattern": anchored}]}
