"""Every ``SPOLA_*`` environment variable: name, type, default and meaning, declared once.

``spola flags`` prints this table. A value that does not parse raises ConfigError; an unknown
``SPOLA_*`` variable is reported by ``unknown``. Nothing is read at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spola.core.errors import ConfigError

__all__ = ["FLAGS", "Flag", "read", "unknown"]


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    kind: type
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    secret: bool = False  # the value is never shown


FLAGS: dict[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag("SPOLA_CHECK", bool, False, "verify every engine invariant after every step (slow)"),
        Flag(
            "SPOLA_ISA",
            str,
            "",
            "instruction set of the native kernels, instead of the best one this processor has",
            ("", "scalar", "avx2", "avx512vnni", "neon"),
        ),
        Flag("SPOLA_HUGE_PAGES", bool, True, "ask the system for huge pages for weights and KV cache"),
        Flag(
            "SPOLA_API_KEY",
            str,
            "",
            "secrets, separated by commas, of which `spola serve` asks for one",
            secret=True,
        ),
        Flag("SPOLA_DEBUG", bool, False, "print tracebacks of errors that are one line otherwise"),
    )
}

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def read(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The value of flag ``name``. Raises KeyError for an undeclared flag, ConfigError for a bad value."""
    flag = FLAGS[name]
    text = (os.environ if environ is None else environ).get(name)
    if text is None:
        return flag.default
    if flag.kind is bool:
        lowered = text.strip().lower()
        if lowered not in _TRUE | _FALSE:
            raise ConfigError(f"{name}={text!r}: use 1 or 0")
        return lowered in _TRUE
    if flag.choices and text not in flag.choices:
        allowed = ", ".join(repr(c) for c in flag.choices if c)
        raise ConfigError(f"{name}={text!r}: use one of {allowed}")
    return flag.kind(text)


def unknown(environ: Mapping[str, str] | None = None) -> list[str]:
    """``SPOLA_*`` variables that are set but mean nothing, so that a typing error is seen."""
    env = os.environ if environ is None else environ
    return sorted(name for name in env if name.startswith("SPOLA_") and name not in FLAGS)
