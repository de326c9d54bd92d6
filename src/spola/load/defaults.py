"""Sampling defaults that a model asks for: ``general.sampling.*`` of GGUF, or ``generation_config.json``.

A value that is out of range is reported and left out: a wrong hint must not keep a good model from
loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spola.core.errors import RequestError
from spola.core.params import SamplingParams

__all__ = ["folder_defaults", "generation_defaults"]

_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "general.sampling.temp": ("temperature", float),
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.penalty_repeat": ("repetition_penalty", float),
}


_FOLDER_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
}
_PENALTY: dict[str, tuple[str, Callable[[Any], Any]]] = {"repetition_penalty": ("repetition_penalty", float)}


def generation_defaults(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """SamplingParams fields that the file sets, and one warning for each that cannot be obeyed."""
    return _read(metadata, _KEYS, "")


def folder_defaults(generation: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same from a parsed ``generation_config.json``, where sampling counts only with ``do_sample``."""
    keys = dict(_PENALTY)
    values = dict(generation)
    if values.get("do_sample") is True:
        keys |= _FOLDER_KEYS
        values.setdefault("temperature", 1.0)
    return _read(values, keys, "generation_config.json: ")


def _read(
    values: Mapping[str, Any], keys: Mapping[str, tuple[str, Callable[[Any], Any]]], where: str
) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    warnings = []
    for key, (field, kind) in keys.items():
        value = values.get(key)
        if value is None:
            continue
        try:
            if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
                raise RequestError(f"not a number: {value!r}")
            SamplingParams(**{field: kind(value)})
        except (RequestError, ValueError, OverflowError) as error:
            warnings.append(f"{where}{key} is ignored: {error}")
        else:
            found[field] = kind(value)
    return found, warnings
