"""Waiting for what must come, as long as a loaded machine may need: no test passes or fails by its speed."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 120.0  # for anything that takes far below a second on a machine with nothing else to do


def until(fine: Callable[[], object]) -> None:
    """Return as soon as ``fine()`` holds; fail when it does not for PATIENCE_S seconds."""
    end = time.monotonic() + PATIENCE_S
    while not fine():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s in vain"
        time.sleep(0.005)
