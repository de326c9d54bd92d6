"""StructuredOutputsParams: what form an answer must have. Plain data; compiling it is ``text.grammar``.

The name and the fields are vLLM's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from spola.core.errors import RequestError

__all__ = ["KINDS", "MAX_CHOICES", "StructuredOutputsParams", "response_form"]

KINDS = ("json", "json_object", "regex", "choice", "grammar")
MAX_CHOICES = 4096
_FORMATS = ("text", "json_object", "json_schema", "regex", "choice", "grammar")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of: ``json`` a JSON Schema (an object, or its text), ``json_object`` any JSON object,
    ``regex`` for the whole answer, ``choice`` one of these texts, ``grammar`` in Lark or GBNF form.

    ``disable_any_whitespace`` leaves no blanks between the tokens of JSON; else a few are allowed. Raises
    RequestError naming the field.
    """

    json: Any = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False) or name == self._boolean]
        if len(given) != 1:
            raise _error(f"needs exactly one of {', '.join(KINDS)}, not {', '.join(given) or 'none'}")
        if self.json is not None and not isinstance(self.json, (str, dict, bool)):
            raise _error("json must be a JSON Schema: an object, a boolean, or the text of one")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise _error(f"{name} must be a non-empty string")
        if self.choice is not None:
            if not isinstance(self.choice, (tuple, list)) or not 1 <= len(self.choice) <= MAX_CHOICES:
                raise _error(f"choice must be a list of 1 to {MAX_CHOICES} texts")
            if not all(isinstance(text, str) and text for text in self.choice):
                raise _error("choice must hold non-empty texts")

    @property
    def _boolean(self) -> str:
        # The schema ``false`` is given, though it is false.
        return "json" if isinstance(self.json, bool) else ""

    @property
    def kind(self) -> str:
        return next(
            name for name in KINDS if getattr(self, name) not in (None, False) or name == self._boolean
        )


def _error(what: str) -> RequestError:
    return RequestError(f"structured_outputs {what}", param="structured_outputs")


def response_form(value: Any) -> tuple[StructuredOutputsParams | None, str]:
    """OpenAI's ``response_format`` as the form asked for, and the field that says so.

    Beside text, json_object and json_schema there are regex, choice and grammar, each in a field of its
    name. Raises RequestError naming the field.
    """
    name = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise _missing(f"{name}.type", f"must be one of {', '.join(_FORMATS)}")
    if kind == "text":
        return None, ""
    schema = value.get("schema")
    if kind == "json_object" and schema is None:
        return StructuredOutputsParams(json_object=True), name
    if kind == "json_schema" and schema is None:
        inner = value.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        place = f"{name}.json_schema.schema"
    else:
        place = f"{name}.{'schema' if kind in ('json_object', 'json_schema') else kind}"
    found = schema if kind in ("json_object", "json_schema") else value.get(kind)
    if found is None:
        raise _missing(place, "is missing")
    if kind == "choice" and isinstance(found, list):
        found = tuple(found)
    try:
        return StructuredOutputsParams(**{"json" if kind.startswith("json") else kind: found}), place
    except RequestError as error:
        raise _missing(place, str(error).removeprefix("structured_outputs ")) from None


def _missing(field: str, what: str) -> RequestError:
    return RequestError(f"{field} {what}", param=field)
