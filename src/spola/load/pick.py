"""Which GGUF file of several is meant: by the quantization in its name, shards counted as one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spola.core.errors import ConfigError

__all__ = ["PREFERRED", "first_shards", "pick", "shards_of"]

# Taken when nobody says which: small enough for any machine, and good.
PREFERRED = ("Q4_K_M", "Q8_0", "Q4_0")
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


def first_shards(names: Iterable[str]) -> list[str]:
    """Models among ``names``, sorted: first shards only, no vision projectors, no calibration data."""
    out = []
    for name in sorted(names):
        match = _SHARD.match(name)
        base = name.rsplit("/", 1)[-1].lower()
        other = "mmproj" in base or "imatrix" in base or (match is not None and match[2] != "00001")
        if name.endswith(".gguf") and not other:
            out.append(name)
    return out


def shards_of(first: str, names: Iterable[str]) -> list[str]:
    """All files of the model whose first is ``first``. Raises ConfigError when some are missing."""
    match = _SHARD.match(first)
    if match is None:
        return [first]
    known = set(names)
    wanted = [f"{match[1]}-{i:05d}-of-{match[3]}.gguf" for i in range(1, int(match[3]) + 1)]
    missing = next((name for name in wanted if name not in known), None)
    if missing is not None:
        raise ConfigError(f"{missing} is missing beside {first}")
    return wanted


def pick(shown: str, files: list[str], tag: str | None) -> str:
    """The file of type ``tag``, or the preferred one. Raises ConfigError listing what there is."""

    def tagged(wanted: str) -> list[str]:
        pattern = re.compile(rf"(?:^|[-_./]){re.escape(wanted)}(?:[-./]|$)", re.IGNORECASE)
        return [name for name in files if pattern.search(name)]

    names = ", ".join(name.rsplit("/", 1)[-1] for name in files[:8])
    if tag is not None:
        hits = tagged(tag)
        if len(hits) != 1:
            raise ConfigError(f"{shown}:{tag}: {len(hits)} files fit; there are {names}")
        return hits[0]
    if len(files) == 1:
        return files[0]
    for wanted in PREFERRED:
        hits = tagged(wanted)
        if len(hits) == 1:
            return hits[0]
    raise ConfigError(f"{shown}: name one of its files as {shown}:TYPE; there are {names}")
