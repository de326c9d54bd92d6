"""Journal: a file of JSON lines to which results are added so that none is lost, torn or there twice.

Each ``append`` is on the disk when it returns. A line that a crash cut off is taken out when the file is
opened again. One process at a time has it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from spola.core.closing import Closing
from spola.core.errors import ConfigError

__all__ = ["Journal", "replace_file"]


class Journal(Closing):
    """Lines by ``key``, a text field that every line has once. Raises ConfigError for a file that is none.

    Lines are JSON objects. ``where`` gives offset and length of each line by its key.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        self.where: dict[str, tuple[int, int]] = {}
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        try:
            self._lock()
            self._end = self._read()
            os.ftruncate(self._fd, self._end)
            _sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add ``lines`` and wait until the disk has them. Raises ConfigError when it is full: none added."""
        data = bytearray()
        added: dict[str, tuple[int, int]] = {}
        for line in lines:
            key = line[self.key]
            if key in self.where or key in added:
                raise ValueError(f"{self.key} {key!r} is in the journal already")
            encoded = msgspec.json.encode(line) + b"\n"
            added[key] = (self._end + len(data), len(encoded))
            data += encoded
        try:
            left = memoryview(bytes(data))
            while left:
                left = left[os.write(self._fd, left) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._end)
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None
        self._end += len(data)
        self.where |= added

    def line(self, key: str) -> bytes:
        """The line of ``key`` as stored, with its newline. Raises KeyError."""
        offset, length = self.where[key]
        return os.pread(self._fd, length, offset)

    def remove(self) -> None:
        """Delete the file and close."""
        os.unlink(self.path)
        _sync_folder(self.path.parent)
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path} is being written by another process") from None
        if not self.path.exists() or self.path.stat().st_ino != os.fstat(self._fd).st_ino:
            raise ConfigError(f"{self.path} was finished by another process just now; try again")

    def _read(self) -> int:
        """Index the lines; gives the end of the last whole one."""
        end = number = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                number += 1
                key = self._key_of(line)
                if key is None:
                    if file.read(1):
                        raise ConfigError(
                            f"{self.path}, line {number} is damaged; remove the file to start over"
                        )
                    break  # cut off by a crash
                if key in self.where:
                    raise ConfigError(f"{self.path}, line {number}: {self.key} {key!r} is there twice")
                self.where[key] = (end, len(line))
                end += len(line)
        return end

    def _key_of(self, line: bytes) -> str | None:
        if not line.endswith(b"\n"):
            return None
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        key = value.get(self.key) if isinstance(value, dict) else None
        return key if isinstance(key, str) else None


def replace_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write ``path`` as a whole: after a crash it is what it was, or complete. Raises ConfigError."""
    part = path.with_name(path.name + ".tmp")
    try:
        with part.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Make a rename or a new file in ``folder`` last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
