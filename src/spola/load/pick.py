"""Which GGUF file of several is meant: by the quantization in its name, shards counted as one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spola.core.errors import ConfigError

__all__ = ["PREFERRED", "first_shards", "pick", "shards_of"]

# Taken when nobody says which, in this order: small enough for most machines and good, then what there is.
PREFERRED = (
    "Q4_K_M",
    "Q8_0",
    "Q4_0",
    "Q5_K_M",
    "Q4_K_S",
    "Q6_K",
    "IQ4_XS",
    "IQ4_NL",
    "Q4_1",
    "Q3_K_M",
    "BF16",
    "F16",
)
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")
# Files named so hold tensors in types of fewer than four bits that are not run here.
_NOT_RUN = re.compile(r"(?:^|[-_./])((?:UD-)?(?:IQ[123]_\w+|TQ[12]_0|MXFP6|NVFP4))(?:[-./]|$)", re.IGNORECASE)
_SHOWN = 12


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


def pick(shown: str, files: list[str], tag: str | None) -> tuple[str, str]:
    """The file of type ``tag`` (or called so), or the preferred one; and why, for a person.

    Raises ConfigError listing what there is.
    """
    if tag is not None:
        return _tagged(shown, files, tag), "as asked"
    run = [name for name in files if not _NOT_RUN.search(name)]
    if not run:
        raise ConfigError(f"{shown}: none of its types is run here; there are {_list(files)}")
    if len(run) == 1:
        return run[0], "the only one" if len(files) == 1 else "the only one of a type that is run here"
    for wanted in PREFERRED:
        hits = _hits(run, wanted)
        if len(hits) == 1:
            return hits[0], f"chosen of {len(files)}; {shown}:TYPE names another"
    raise ConfigError(f"{shown}: name one of its files as {shown}:TYPE; there are {_list(run)}")


def _tagged(shown: str, files: list[str], tag: str) -> str:
    called = [name for name in files if name.rsplit("/", 1)[-1].removesuffix(".gguf").lower() == tag.lower()]
    hits = called or _hits(files, tag)
    if len(hits) != 1:
        raise ConfigError(f"{shown}:{tag}: {len(hits)} files fit; there are {_list(files)}")
    match = _NOT_RUN.search(hits[0])
    if match is not None:
        raise ConfigError(
            f"{shown}:{tag}: {match[1]} is a type that is not run here; there are {_list(files)}"
        )
    return hits[0]


def _hits(files: list[str], wanted: str) -> list[str]:
    pattern = re.compile(rf"(?:^|[-_./]){re.escape(wanted)}(?:[-./]|$)", re.IGNORECASE)
    return [name for name in files if pattern.search(name)]


def _list(files: list[str]) -> str:
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return ", ".join(name.rsplit("/", 1)[-1] for name in files[:_SHOWN]) + more
