"""Stored weights to another storage type, in native code: what quantizing while loading and writing files
use.
"""

from __future__ import annotations

from typing import Any

from spola import _native
from spola.core.dtype import BY_NAME

__all__ = ["convert_rows"]


def convert_rows(source: str, target: str, rows: int, columns: int, data: Any, threads: int) -> bytearray:
    """``rows`` rows of ``columns`` values of DType ``source`` as DType ``target``, rounded to nearest.

    ``data`` is a buffer. Rows must be whole blocks of both types. Raises ValueError naming the first row with
    a value that is not finite, or too large for the type.
    """
    return _native.convert(BY_NAME[source].gguf_id, BY_NAME[target].gguf_id, rows, columns, data, threads)
