"""Typed, bounded access to the ``config.json`` of a Hugging Face folder. Knows no family."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from spola.core.errors import ModelError

__all__ = ["MAX_CONTEXT", "MAX_HEADS", "MAX_LAYERS", "MAX_WIDTH", "HfConfig", "show"]

MAX_LAYERS = 4096
MAX_HEADS = 65536
MAX_WIDTH = 1 << 24
MAX_CONTEXT = (1 << 31) - 1


class HfConfig:
    """One model's keys; remembers which were asked for. A key that is null counts as missing.

    ``defaults`` are those that the model's own configuration class has; ``aliases`` maps a usual key to what
    this family calls it. Every accessor raises ModelError naming the key on a missing value, a wrong type or
    a value out of range. Bounds are inclusive.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.values = values
        self._defaults = defaults or {}
        self._aliases = aliases or {}
        self.read: set[str] = set()

    def name(self, key: str) -> str:
        """What the file calls ``key``."""
        return self._aliases.get(key, key)

    def given(self, key: str) -> bool:
        """Whether the file has ``key``, be it null."""
        return self.name(key) in self.values

    def get(self, key: str) -> Any:
        """The value, else the default, else None."""
        name = self.name(key)
        self.read.add(name)
        value = self.values.get(name)
        # An explicit null is what the file says, where it has a meaning of its own: no window, no cap.
        return self._defaults.get(key) if value is None and name not in self.values else value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        value = self.get(key)
        return None if value is None else integer(self.name(key), value, low, high)

    def integer(self, key: str, low: int, high: int) -> int:
        return integer(self.name(key), self._need(key), low, high)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        value = self.get(key)
        return None if value is None else number(self.name(key), value, low, high)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.optional_number(key, low, high)
        if value is not None:
            return value
        return number(self.name(key), self._need(key), low, high) if default is None else default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"config.json: {self.name(key)} must be true or false, not {show(value)}")
        return value

    def listed(self, key: str, n: int) -> list[Any] | None:
        """A list of ``n`` entries, one per layer, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n:
            raise ModelError(f"config.json: {self.name(key)} must be a list of {n} entries, one per layer")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise ModelError(f"config.json: {self.name(key)} must be an object, not {show(value)}")
        return value

    def unread(self, harmless: Iterable[str]) -> list[str]:
        """Warnings about keys that nothing asked for and that say something."""
        known = self.read | set(harmless)
        unknown = [k for k, v in self.values.items() if k not in known and v not in (None, False, [], {}, "")]
        return [f"config.json: {key[:80]} is not known and has no effect" for key in unknown[:8]]

    def _need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"config.json: {self.name(key)} is missing")
        return value


def integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"config.json: {name} must be an integer, not {show(value)}")
    if not low <= value <= high:
        raise ModelError(f"config.json: {name} must be between {low} and {high}, not {value}")
    return value


def number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"config.json: {name} must be a number, not {show(value)}")
    # A big integer cannot become a float, and NaN compares with nothing.
    if not low <= value <= high or not math.isfinite(value):
        raise ModelError(f"config.json: {name} must be between {low:g} and {high:g}, not {show(value)}")
    return float(value)


def show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
