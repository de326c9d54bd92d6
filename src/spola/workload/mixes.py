"""Mixes of requests: how long prompts and answers are, and what prompts have in common.

Lengths are in tokens. A mix says nothing about when requests come (``workload.arrivals``) and holds no text
unless its file does (``workload.text`` makes some).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spola.core.errors import ConfigError

__all__ = ["DATASETS", "Item", "Mix", "mix"]

DATASETS = ("random", "sharegpt-like", "prefix")
LONGEST = 2048  # tokens of prompt and answer together in the sharegpt-like mix
_FILE_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Item:
    """One request: ``prompt`` tokens in, at most ``output`` out.

    The first ``shared`` tokens are the same for all items of one ``group``. ``messages`` or ``text`` is what
    a file holds; ``prompt`` is then an estimate.
    """

    prompt: int
    output: int
    shared: int = 0
    group: int = 0
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """``items`` in the order in which they arrive; ``about`` describes them in one line."""

    items: tuple[Item, ...]
    about: str


def mix(
    dataset: str = "random",
    count: int = 100,
    *,
    seed: int = 0,
    prompt: int = 128,
    output: int = 128,
    spread: float = 0.0,
    shared: int = 256,
    groups: int = 4,
) -> Mix:
    """``count`` requests of ``dataset``; the same arguments give the same items.

    random: lengths uniform within ``spread`` (a fraction) of ``prompt`` and ``output``. sharegpt-like:
    log-normal lengths with the median and the heavy tail of people's chats (prompt median 80, output median
    160, filtered as vLLM filters ShareGPT: 4 to 1024 prompt tokens, at most 2048 together): synthetic.
    prefix: ``groups`` prefixes of ``shared`` tokens; a prompt is one of them and ``prompt`` own tokens.
    Anything else is a file: JSON lines with "prompt" or "messages" and, optionally, "output_tokens" or
    "max_tokens" (else ``output``), or a ShareGPT JSON array. A file shorter than ``count`` starts again.

    Raises ConfigError naming the argument or the line of the file.
    """
    for name, value, least in (("requests", count, 1), ("prompt", prompt, 1), ("output", output, 1)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")
    if not 0 <= spread < 1:
        raise ConfigError(f"spread must be at least 0 and below 1, not {spread}")
    rng = random.Random(f"mix {dataset if dataset in DATASETS else 'file'} {seed}")
    if dataset == "random":
        items = [Item(_around(prompt, spread, rng), _around(output, spread, rng)) for _ in range(count)]
        about = f"prompts of {_range(prompt, spread)} and answers of {_range(output, spread)} tokens"
    elif dataset == "sharegpt-like":
        items = [_chat(rng) for _ in range(count)]
        about = "log-normal lengths like those of people's chats (synthetic)"
    elif dataset == "prefix":
        if shared < 1 or groups < 1:
            raise ConfigError(
                f"a prefix mix needs at least 1 shared token and 1 group, not {shared}, {groups}"
            )
        items = [
            Item(shared + _around(prompt, spread, rng), _around(output, spread, rng), shared, i % groups)
            for i in range(count)
        ]
        rng.shuffle(items)
        about = f"{groups} prefixes of {shared} tokens, {_range(prompt, spread)} tokens more in each prompt"
    else:
        found = _read(Path(dataset), output)
        items = [found[i % len(found)] for i in range(count)]
        about = f"{min(count, len(found))} requests of {Path(dataset).name}"
    return Mix(tuple(items), about)


def _around(middle: int, spread: float, rng: random.Random) -> int:
    low, high = _bounds(middle, spread)
    return rng.randint(low, high)


def _bounds(middle: int, spread: float) -> tuple[int, int]:
    return max(1, math.ceil(middle * (1 - spread))), max(1, math.floor(middle * (1 + spread)))


def _range(middle: int, spread: float) -> str:
    low, high = _bounds(middle, spread)
    return str(middle) if low == high else f"{low} to {high}"


def _chat(rng: random.Random) -> Item:
    while True:
        prompt = round(rng.lognormvariate(math.log(80), 1.2))
        output = round(rng.lognormvariate(math.log(160), 0.9))
        if 4 <= prompt <= 1024 and output >= 4 and prompt + output <= LONGEST:
            return Item(prompt, output)


def _read(path: Path, output: int) -> list[Item]:
    try:
        if path.stat().st_size > _FILE_LIMIT:
            raise ConfigError(f"dataset {path}: holds more than {_FILE_LIMIT} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"dataset {str(path)!r} is none of {', '.join(DATASETS)} and no file that can be read: "
            f"{error.strerror}"
        ) from None
    items: list[Item] = []
    if data.lstrip()[:1] == b"[":
        for index, entry in enumerate(_decode(data, path, "the array")):
            item = _sharegpt(entry, output)
            if item is None:
                raise ConfigError(f"dataset {path}: entry {index} has no conversation of a human and a model")
            items.append(item)
    else:
        for number, line in enumerate(data.splitlines(), start=1):
            if line.strip():
                items.append(_line(_decode(line, path, f"line {number}"), f"{path}, line {number}", output))
    if not items:
        raise ConfigError(f"dataset {path}: holds no request")
    return items


def _decode(data: bytes, path: Path, place: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"dataset {path}: {place} is not valid JSON: {error}") from None


def _line(entry: Any, place: str, output: int) -> Item:
    if not isinstance(entry, dict):
        raise ConfigError(f"dataset {place}: must be a JSON object")
    tokens = entry.get("output_tokens", entry.get("max_tokens", output))
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"dataset {place}: output_tokens must be a number of at least 1, not {tokens!r}")
    prompt, messages = entry.get("prompt"), entry.get("messages")
    if isinstance(prompt, str) and prompt and messages is None:
        return Item(estimate(prompt), tokens, text=prompt)
    if prompt is None and isinstance(messages, list) and messages and all(map(_is_message, messages)):
        text = "".join(message["content"] for message in messages)
        return Item(estimate(text), tokens, messages=tuple(messages))
    raise ConfigError(f'dataset {place}: needs either "prompt" (text) or "messages" (role and content)')


def _is_message(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("role"), str)
        and isinstance(entry.get("content"), str)
    )


def _sharegpt(entry: Any, output: int) -> Item | None:
    """The first two turns of a ShareGPT conversation; the second's length is the answer's."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns):
        return None
    asked, said = turns[0].get("value"), turns[1].get("value")
    if not isinstance(asked, str) or not isinstance(said, str) or not asked:
        return None
    return Item(estimate(asked), estimate(said) or output, text=asked)


def estimate(text: str) -> int:
    """About how many tokens ``text`` has: a token for four bytes, as English has in common vocabularies."""
    return max(1, len(text.encode("utf-8", "replace")) // 4)
