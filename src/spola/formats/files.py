"""Reading regular files at absolute offsets, and wording what is wrong with them in one line.

Does not map files into memory and does not know any format. Every refusal is a ModelError whose text
starts with the path.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from spola.core.closing import Closing
from spola.core.errors import ModelError

__all__ = ["RegularFile", "file_error", "path_text", "quoted"]

_READ_LIMIT = 1 << 30  # one call of Linux moves less than 2 GiB whatever it is asked for
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def quoted(text: str | bytes, limit: int = 80) -> str:
    """``text`` in quotes on one line, control characters and bad bytes escaped, cut after ``limit``."""
    cut = text[:limit]
    shown = repr(cut) if isinstance(cut, str) else repr(cut)[1:]
    return shown if len(text) <= limit else f"{shown}..."


def path_text(path: Path) -> str:
    """The path as a person would type it, or escaped where it holds control characters."""
    text = os.fspath(path)
    return text if text.isprintable() else quoted(text, 400)


def file_error(path: Path, problem: str) -> ModelError:
    return ModelError(f"{path_text(path)}: {problem}")


class RegularFile(Closing):
    """A regular file open for reading at absolute offsets; safe to use from several threads.

    ``size`` (bytes) and ``mtime_ns`` are those at the time of opening. Raises ModelError where the path
    is missing, unreadable or not a regular file; a pipe or device is refused without waiting on it.
    """

    __slots__ = ("_raw", "mtime_ns", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = _open_regular(path)
        info = os.fstat(self._raw.fileno())
        self.size = info.st_size
        self.mtime_ns = info.st_mtime_ns

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` (writable, of bytes) from ``offset``; ModelError when the file ends before."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._raw.fileno(), [buffer[done : done + _READ_LIMIT]], offset + done)
            except OSError as error:
                raise file_error(self.path, f"cannot be read: {error.strerror}") from error
            if count == 0:
                raise file_error(self.path, f"ends at byte {offset + done}; it was cut while being read")
            done += count

    def read(self, offset: int, count: int) -> bytearray:
        """``count`` bytes from ``offset``. The caller has checked ``count`` against ``size``."""
        data = bytearray(count)
        with memoryview(data) as view:
            self.read_into(offset, view)
        return data

    def close(self) -> None:
        self._raw.close()

    @property
    def closed(self) -> bool:
        return self._raw.closed


def _open_regular(path: Path) -> FileIO:
    try:
        # Without O_NONBLOCK the open itself would wait for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise file_error(path, "no such file") from error
        raise file_error(path, f"cannot be opened: {error.strerror}") from error
    except ValueError as error:  # a NUL character in the path
        raise file_error(path, f"is not a usable path: {error}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((name for test, name in _KINDS if test(mode)), "a special file")
        raise file_error(path, f"is {kind}, not a regular file")
    return FileIO(descriptor, "rb")
