"""Which form an answer must have, in any of the words that clients use for it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``, llama.cpp's ``grammar`` and
``json_schema``: all become one StructuredOutputsParams. A form is enforced with and without ``strict``.
"""

from __future__ import annotations

from typing import Any

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams, response_form
from spola.server.errors import ApiError
from spola.server.fields import CONSTRAINTS, CommonRequest, Structured

__all__ = ["constraint"]

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}


def constraint(request: CommonRequest) -> tuple[StructuredOutputsParams | None, str]:
    """The form asked for, and the field that says so. Raises ApiError naming the field."""
    given = [name for name in CONSTRAINTS if getattr(request, name) is not None]
    if len(given) > 1:
        raise ApiError(400, f"{given[1]}: {given[0]} already says what form the answer has", param=given[1])
    if not given:
        return None, ""
    (name,) = given
    value = getattr(request, name)
    if name == "response_format":
        return response_form(value)
    if isinstance(value, Structured):
        fields = {field: getattr(value, field) for field in value.__struct_fields__}
        return _made(name, {field: item for field, item in fields.items() if item is not None}), name
    return _made(name, {_GUIDED[name]: value}), name


def _made(place: str, fields: dict[str, Any]) -> StructuredOutputsParams:
    if "choice" in fields and isinstance(fields["choice"], list):
        fields = {**fields, "choice": tuple(fields["choice"])}
    try:
        return StructuredOutputsParams(**fields)
    except RequestError as error:
        said = str(error).removeprefix("structured_outputs ")
        raise ApiError(400, f"{place}: {said}", param=place) from None
