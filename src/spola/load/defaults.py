"""Sampling defaults that a model file asks for: the ``general.sampling.*`` keys of GGUF.

A value that is out of range is reported and left out: a wrong hint must not keep a good model from
loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spola.core.errors import RequestError
from spola.core.params import SamplingParams

__all__ = ["generation_defaults"]

_KEYS = {
    "general.sampling.temp": ("temperature", float),
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.penalty_repeat": ("repetition_penalty", float),
}


def generation_defaults(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """SamplingParams fields that the file sets, and one warning for each that cannot be obeyed."""
    found: dict[str, Any] = {}
    warnings = []
    for key, (field, kind) in _KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        try:
            if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
                raise RequestError(f"not a number: {value!r}")
            SamplingParams(**{field: kind(value)})
        except (RequestError, ValueError, OverflowError) as error:
            warnings.append(f"{key} is ignored: {error}")
        else:
            found[field] = kind(value)
    return found, warnings
