"""Reading a JSON object from a file that someone else wrote: bounded, strict, with one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spola.formats.files import RegularFile, file_error, quoted

__all__ = ["read_json"]

_LIMIT = 16 << 20


def read_json(path: Path, limit: int = _LIMIT) -> dict[str, Any]:
    """The object in ``path``, of at most ``limit`` bytes.

    Raises ModelError naming the file: when it is missing, too large, no JSON object, or has a key twice.
    """
    with RegularFile(path) as file:
        if file.size > limit:
            raise file_error(path, f"has {file.size} bytes; at most {limit} are read")
        data = file.read(0, file.size)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise file_error(path, f"has the key {quoted(key)} twice")
            found[key] = value
        return found

    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs)
    except RecursionError:
        raise file_error(path, "is nested too deep") from None
    except ValueError as error:
        raise file_error(path, f"is no valid JSON: {quoted(str(error), 200)[1:-1]}") from None
    if not isinstance(value, dict):
        raise file_error(path, "holds no JSON object")
    return value
