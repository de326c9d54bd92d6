"""Options as a person gives them, and the EngineConfig they become.

An Options value of None means "choose for me"; an EngineConfig holds the choice made, so that it can be
printed. Choosing is in ``runtime.fit`` and ``runtime.build``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from spola.core.errors import ConfigError
from spola.core.runner import KvGroup
from spola.engine.drafter import DraftRule
from spola.engine.limits import Batching, Reservation
from spola.runtime.memory import MemoryPlan
from spola.spec.weight_types import weight_type

__all__ = ["DraftConfig", "EngineConfig", "Options", "parse_bytes", "parse_kv_dtype", "parse_memory"]

DEFAULT_WINDOW_S = 0.2
DEFAULT_STEP_TOKENS = 512
MAX_THREADS = 1024
SPECULATE = ("off", "ngram", "suffix")
DRAFT = "draft="  # followed by the name of a model
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Engine options. Sizes in bytes, lengths in tokens.

    ``precise`` computes with 16-bit instead of 8-bit activations. ``kv_dtype`` is one type for K and V, or
    two as ``K,V``. ``prefix_cache`` keeps the K and V of texts that may come again. ``itl_target_s`` bounds
    the prompt tokens of a step, so that running requests get their next token in that time; None computes as
    fast as it can. ``chat_template`` is the text of a template that replaces the model's own. ``trace`` is a
    file for the timeline of steps and requests. ``speculate`` says where drafts of the next tokens come from:
    a value of ``SPECULATE``, or ``draft=MODEL``; ``draft_rule`` how those of a model are verified.
    ``kv_memory`` is in bytes, or, as a float below 1, a fraction of what this process may use. ``weights``
    quantizes F32, F16 and BF16 weights of the served model while they are loaded: a key of
    ``spec.weight_types.WEIGHT_TYPES``. ``lora`` are adapters that requests may name: (name, folder).
    ``batching``, ``batch_window_s`` (for dynamic batching; None is 0.2) and ``reservation`` are those of
    ``engine.limits.Limits``. Raises ConfigError naming the field.
    """

    backend: str = "native"
    threads: int | None = None
    precise: bool = False
    weights: str | None = None
    lora: tuple[tuple[str, str], ...] = ()
    kv_dtype: str = "f16"
    kv_memory: int | float | None = None
    max_model_len: int | None = None
    max_seqs: int = 32
    key_seats: int | None = None
    max_step_tokens: int = DEFAULT_STEP_TOKENS
    itl_target_s: float | None = None
    trace: Path | None = None
    chat_template: str | None = None
    speculate: str = "off"
    draft_rule: DraftRule = "match"
    prefix_cache: bool = True
    batching: Batching = "continuous"
    batch_window_s: float | None = None
    reservation: Reservation = "paged"

    def __post_init__(self) -> None:
        limits = {"threads": MAX_THREADS, "max_model_len": 1 << 31}
        if isinstance(self.kv_memory, float):
            if not 0 < self.kv_memory < 1:
                raise ConfigError(f"kv_memory as a fraction must be between 0 and 1, not {self.kv_memory:g}")
        else:
            limits |= {"kv_memory": 1 << 50}
        limits |= {"max_seqs": 1 << 16, "key_seats": 1 << 16, "max_step_tokens": 1 << 20}
        for name, most in limits.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} must be an integer, not {value!r}")
            if not 1 <= value <= most:
                raise ConfigError(f"{name} must be between 1 and {most}, not {value}")
        if self.itl_target_s is not None and not 0 < self.itl_target_s < math.inf:
            raise ConfigError(f"itl_target must be above 0 ms, not {self.itl_target_s * 1000:g}")
        self._check_speculation()
        choices = {"batching": Batching, "reservation": Reservation, "draft_rule": DraftRule}
        for name, kinds in choices.items():
            if getattr(self, name) not in get_args(kinds):
                raise ConfigError(f"{name}: {getattr(self, name)!r} is none of {', '.join(get_args(kinds))}")
        if self.reservation == "contiguous" and self.prefix_cache:
            raise ConfigError("reservation contiguous shares no blocks: turn the prefix cache off, too")
        if self.batch_window_s is not None and self.batching != "dynamic":
            raise ConfigError("batch_window is for dynamic batching only")
        if self.batch_window_s is not None and not 0 <= self.batch_window_s < math.inf:
            raise ConfigError(f"batch_window must be at least 0 ms, not {self.batch_window_s * 1000:g}")
        if self.weights is not None:
            weight_type(self.weights)
        names = [name for name, _ in self.lora]
        if len(set(names)) != len(names) or not all(names):
            raise ConfigError("lora: each adapter needs a name of its own")
        if self.max_step_tokens < self.max_seqs:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_seqs ({self.max_seqs})"
            )

    def _check_speculation(self) -> None:
        draft = self.speculate.startswith(DRAFT)
        if self.speculate not in SPECULATE and not draft:
            known = ", ".join((*SPECULATE, f"{DRAFT}MODEL"))
            raise ConfigError(f"speculate: {self.speculate!r} is none of {known}")
        if self.speculate == DRAFT:
            raise ConfigError(f"speculate: {DRAFT} needs the name of a model")
        if self.draft_rule != "match" and not draft:
            raise ConfigError(f"draft_rule is for drafts of a model: speculate {DRAFT}MODEL")


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The draft model of an engine. Sizes in bytes, lengths in tokens."""

    model: str
    path: str
    packed_bytes: int
    kv_groups: tuple[KvGroup, ...]
    kv_blocks: tuple[int, ...]
    kv_bytes: int
    max_model_len: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen: printed with ``-v``, part of ``--json``. Sizes in bytes, lengths in tokens."""

    model: str
    path: str
    architecture: str
    backend: str
    device: str
    threads: int
    threads_reason: str
    precise: bool
    kv_dtypes: tuple[str, str]
    kv_groups: tuple[KvGroup, ...]
    kv_blocks: tuple[int, ...]
    kv_bytes: int
    kv_bytes_per_token: int
    weights_bytes: int  # as in the file
    packed_bytes: int  # as the backend holds them
    usable_bytes: int
    memory: MemoryPlan | None = None  # of the whole process, where the backend tells
    trained_context: int
    max_model_len: int
    max_model_len_reason: str
    max_seqs: int
    max_step_tokens: int
    prefix_cache: bool
    batching: Batching = "continuous"
    batch_window_s: float = 0.0
    reservation: Reservation = "paged"
    fingerprint: str
    adapters: tuple[str, ...] = ()
    adapter_bytes: int = 0
    max_lora_rank: int = 0
    itl_target_s: float | None = None
    speculate: str = "off"
    draft: DraftConfig | None = None
    draft_rule: DraftRule = "match"


def parse_memory(text: str, name: str) -> int | float:
    """As ``parse_bytes``, or ``40%`` -> 0.4: a fraction of what this process may use."""
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if share is None:
        return parse_bytes(text, name)
    if not 0 < float(share[1]) < 100:
        raise ConfigError(f"{name}: {text!r} is no part of the memory; write 40%")
    return float(share[1]) / 100


def parse_bytes(text: str, name: str) -> int:
    """``512M``, ``1.5GiB``, ``2000000000`` -> bytes; k, M, G and T are powers of 1000, Ki ... of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{name}: {text!r} is no size; write 512M, 2GiB or 40%")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def parse_kv_dtype(text: str) -> tuple[str, str]:
    """``f16`` or ``f16,f32`` -> the types of K and V. Which ones exist is checked by ``spec.kv``."""
    k, _, v = text.partition(",")
    if not k.strip() or ("," in text and not v.strip()):
        raise ConfigError(f"kv_dtype: {text!r} must be TYPE or KTYPE,VTYPE")
    return k.strip(), v.strip() or k.strip()
