"""Where this user's files are kept. Looks at the environment only; creates and reads nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_root"]

_NO_HOME = Path("/nonexistent")  # the home of users that have none, by Debian's policy manual


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME``, or ``~/.cache``; for a user without a home, a place where nothing can be kept."""
    base = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    # The specification of base directories says that a relative value is to be ignored.
    if os.path.isabs(base):
        return Path(base)
    try:
        return Path("~/.cache").expanduser()
    except RuntimeError:  # a container's user: no HOME and no entry in the list of users
        return _NO_HOME / ".cache"
