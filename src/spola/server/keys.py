"""API keys: who may call the server, with which weight and limits.

A keys file is TOML, one table per key:

    [alice]
    secret = "at least 16 characters"
    weight = 2                     # share of the machine beside other keys; default 1
    requests_per_minute = 60       # default: no limit
    tokens_per_minute = 20000      # prompt and generated tokens together; default: no limit

Only digests of the secrets are kept, and a secret is compared with all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spola.core.errors import ConfigError
from spola.core.text_file import read_text

__all__ = ["Key", "KeyRing", "read_keys"]

MAX_FILE = 1 << 20
MIN_SECRET = 16
MAX_WEIGHT = 1000.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = ("secret", "weight", "requests_per_minute", "tokens_per_minute")


@dataclass(frozen=True, slots=True)
class Key:
    """A caller. Limits of None are none; the anonymous key is what everybody is on a server without keys."""

    name: str
    weight: float = 1.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    digest: bytes = field(default=b"", repr=False)


ANONYMOUS = Key("")


class KeyRing:
    """The keys of a server; without any, everybody may call."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def find(self, secret: str) -> Key | None:
        """The key with this secret. Takes as long for a wrong secret as for any right one."""
        digest = _digest(secret)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def read_keys(path: Path | None, environment: str = "") -> KeyRing:
    """The keys in the file ``path`` and in ``environment``: secrets separated by commas, named env, env2 ...

    Raises ConfigError naming file and key; never with a secret in it.
    """
    keys = [] if path is None else _from_file(path)
    secrets = [secret.strip() for secret in environment.split(",") if secret.strip()]
    for number, secret in enumerate(secrets, start=1):
        keys.append(Key("env" if number == 1 else f"env{number}", digest=_secret(secret, "SPOLA_API_KEY")))
    for kind, values in (("name", [key.name for key in keys]), ("secret", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise ConfigError(f"API keys: two keys have the same {kind}")
    return KeyRing(keys)


def _from_file(path: Path) -> list[Key]:
    text = read_text(path, "--keys", MAX_FILE)
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # Its words hold a position, never the text itself.
        raise ConfigError(f"--keys {path}: is not valid TOML: {error}") from None
    if not tables:
        raise ConfigError(f'--keys {path}: has no keys; write [name] and secret = "..."')
    return [_key(name, table, f"--keys {path}: [{name[:64]}]") for name, table in tables.items()]


def _key(name: str, table: Any, place: str) -> Key:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: must be a table with a secret")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{place}: a name has 1 to 64 letters, digits, dots, dashes and underscores")
    for known in table:
        if known not in _FIELDS:
            raise ConfigError(f"{place}: {known[:64]!r} is none of {', '.join(_FIELDS)}")
    return Key(
        name,
        weight=_number(table, "weight", MAX_WEIGHT, place) or 1.0,
        requests_per_minute=_number(table, "requests_per_minute", 1e9, place),
        tokens_per_minute=_number(table, "tokens_per_minute", 1e12, place),
        digest=_secret(table.get("secret"), place),
    )


def _number(table: Mapping[str, Any], name: str, most: float, place: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ConfigError(f"{place}: {name} must be a number above 0 and at most {most:g}")
    assert math.isfinite(value)
    return float(value)


def _secret(value: Any, place: str) -> bytes:
    if not isinstance(value, str) or len(value) < MIN_SECRET:
        raise ConfigError(f"{place}: a secret has at least {MIN_SECRET} characters")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{place}: a secret is printable ASCII without spaces, so that a header can hold it"
        )
    return _digest(value)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
