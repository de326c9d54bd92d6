"""Accounts: what each API key has used and may still use. Lives on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spola.server.keys import ANONYMOUS, Key, KeyRing
from spola.server.quota import Quota

__all__ = ["Account", "Accounts"]


@dataclass(slots=True)
class Account:
    """``key`` with its limits and the sums of its finished requests. ``refused``: by a limit of the key."""

    key: Key
    quota: Quota
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    disconnects: int = 0
    http: dict[tuple[str, str, int], int] = field(default_factory=dict)  # route, method, status -> answers


class Accounts:
    """One account per key of ``ring``, and one for whoever shows none."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        keys = (ANONYMOUS, *ring.keys)
        self.ring = ring
        self.all = {key.name: Account(key, Quota(key, clock)) for key in keys}

    def of(self, key: Key) -> Account:
        return self.all[key.name]
