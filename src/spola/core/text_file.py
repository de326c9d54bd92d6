"""Reading a text file that a person named in an option: bounded, with one-line errors that name both."""

from __future__ import annotations

from pathlib import Path

from spola.core.errors import ConfigError

__all__ = ["read_text"]


def read_text(path: Path, option: str, limit: int) -> str:
    """The UTF-8 text in ``path``. Raises ConfigError where it has more than ``limit`` bytes or is unreadable.

    Never more than that is read, so that an endless device does no harm.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from None
    if len(data) > limit:
        raise ConfigError(f"{option} {path}: holds more than {limit} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {path}: is not valid UTF-8 at byte {error.start}") from None
