"""Typed, bounded access to the metadata of a GGUF file. Knows no architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spola.core.errors import ModelError

__all__ = ["MAX_CONTEXT", "MAX_HEADS", "MAX_LAYERS", "MAX_WIDTH", "Keys"]

MAX_LAYERS = 4096
MAX_HEADS = 65536
MAX_WIDTH = 1 << 24
MAX_CONTEXT = (1 << 31) - 1


class Keys:
    """The keys ``{arch}.*`` of one file; remembers which were asked for.

    Every accessor raises ModelError naming the full key on a missing value, a wrong type or a value out of
    range. Bounds are inclusive.
    """

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata = metadata
        self.arch = arch
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """The raw value of ``{arch}.{key}``, or None."""
        self._read.add(key)
        return self.metadata.get(f"{self.arch}.{key}")

    def was_read(self, key: str) -> bool:
        """Whether anything has asked for ``{arch}.{key}``."""
        return key in self._read

    def text(self, key: str) -> str | None:
        """A string under its full name (no architecture in front), or None when absent."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"key {key} must be a string, not {_show(value)}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        value = self.get(key)
        return None if value is None else self._integer(key, value, low, high)

    def integer(self, key: str, low: int, high: int) -> int:
        return self._integer(key, self._need(key), low, high)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        value = self.get(key)
        return None if value is None else self._number(key, value, low, high)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.optional_number(key, low, high)
        if value is not None:
            return value
        if default is None:
            self._need(key)
            raise AssertionError  # not reached
        return default

    def per_layer(
        self, key: str, n: int, low: int, high: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """One integer per layer: the key holds a number for all, or a list of ``n``."""
        value = self.get(key)
        if value is None:
            return self._need(key) if default is None else default
        if not isinstance(value, (list, tuple)):
            return (self._integer(key, value, low, high),) * n
        if len(value) != n:
            raise ModelError(f"key {self.arch}.{key} has {len(value)} entries, but the model {n} layers")
        return tuple(self._integer(key, entry, low, high) for entry in value)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        value = self.get(key)
        if value is not None and value not in allowed:
            raise ModelError(f"key {self.arch}.{key} is {_show(value)}; supported are: {', '.join(allowed)}")
        return None if value is None else str(value)

    def unread(self, neutral: Mapping[str, Any]) -> list[str]:
        """Warnings about keys of this architecture that nothing asked for."""
        prefix = f"{self.arch}."
        names = [key for key in self.metadata if key.startswith(prefix)]
        harmless = {*neutral, "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"}
        unknown = [k for k in names if k[len(prefix) :] not in self._read | harmless]
        return [f"key {key[:80]} is not known and has no effect" for key in unknown[:8]]

    def _need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"key {self.arch}.{key} is missing")
        return value

    def _integer(self, key: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"key {self.arch}.{key} must be an integer, not {_show(value)}")
        if not low <= value <= high:
            raise ModelError(f"key {self.arch}.{key} must be between {low} and {high}, not {value}")
        return value

    def _number(self, key: str, value: Any, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"key {self.arch}.{key} must be a number, not {_show(value)}")
        if not math.isfinite(value) or not low <= value <= high:
            raise ModelError(f"key {self.arch}.{key} must be between {low:g} and {high:g}, not {value:g}")
        return float(value)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
