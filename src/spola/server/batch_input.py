"""The input of ``spola batch``: OpenAI's batch lines, checked as a whole before the first is run.

A line that cannot be told from others (no JSON, no custom_id, one that another line has) refuses the file,
with its number. What is wrong with a request itself is that line's result and is not looked at here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from spola.core.closing import Closing
from spola.core.errors import RequestError

__all__ = ["BatchInput", "Entry"]

MAX_ID = 512
_FIELDS = ("custom_id", "method", "url", "body", "priority")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a line is. ``key`` is a hash of its bytes and of the ``salt`` of the input; lower ``priority``
    goes first.
    """

    custom_id: str
    number: int
    priority: int
    key: str
    offset: int
    length: int


class BatchInput(Closing):
    """Lines of ``path``, in order, as ``entries``; ``read`` gives one as a dict.

    ``salt``: what else the results depend on. Empty lines do not count. Raises RequestError naming the line.
    """

    def __init__(self, path: Path, salt: str = "") -> None:
        self.path = path
        self._salt = salt.encode()
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}", param="input") from None
        try:
            self.entries = list(self._scan())
        except BaseException:
            self._file.close()
            raise

    def read(self, entry: Entry) -> dict[str, Any]:
        """The line of ``entry``. Raises RequestError when it is not what it was."""
        self._file.seek(entry.offset)
        line = self._file.read(entry.length)
        if self._key(line) != entry.key:
            raise RequestError(
                f"{self.path}, line {entry.number}: changed while the batch was running", param="input"
            )
        value: dict[str, Any] = msgspec.json.decode(line)
        return value

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _scan(self) -> Iterator[Entry]:
        seen: dict[str, int] = {}
        offset = 0
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                entry = self._entry(number, offset, line)
                first = seen.setdefault(entry.custom_id, number)
                if first != number:
                    raise self._wrong(number, f"custom_id {entry.custom_id!r} is that of line {first} too")
                yield entry
            offset += len(line)

    def _entry(self, number: int, offset: int, line: bytes) -> Entry:
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong(number, f"not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise self._wrong(number, "a line must be a JSON object")
        for name in value:
            if name not in _FIELDS:
                raise self._wrong(number, f"unknown field {name[:80]!r}; there are {', '.join(_FIELDS)}")
        custom_id, priority = value.get("custom_id"), value.get("priority", 0)
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID:
            raise self._wrong(number, f"custom_id must be a text of 1 to {MAX_ID} characters")
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31:
            raise self._wrong(number, f"priority must be an integer, not {priority!r:.40}")
        return Entry(custom_id, number, priority, self._key(line), offset, len(line))

    def _key(self, line: bytes) -> str:
        """Of the line without its end, which a file's last line may lack."""
        return hashlib.blake2b(line.strip(), digest_size=16, key=self._salt[:64]).hexdigest()

    def _wrong(self, number: int, what: str) -> RequestError:
        return RequestError(f"{self.path}, line {number}: {what}", param="input")
