"""Loaded: an engine with its model in it, and what was found out on the way. ``runtime.build`` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spola.engine.engine import Engine
from spola.engine.metrics import Metrics
from spola.runtime.config import EngineConfig
from spola.runtime.live import LiveView
from spola.runtime.machine import Machine
from spola.runtime.step_log import StepLog
from spola.runtime.timeline import Timeline
from spola.spec.decoder import DecoderSpec
from spola.text.chat import ChatTemplate
from spola.text.tokenizer import Tokenizer

__all__ = ["Loaded"]


@dataclass(frozen=True)
class Loaded:
    """``dtypes``: canonical tensor name -> DType name. ``notes`` are lines for a person; times in seconds."""

    engine: Engine
    spec: DecoderSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Mapping[str, Any]
    dtypes: Mapping[str, str]
    config: EngineConfig
    machine: Machine
    metrics: Metrics
    timeline: Timeline | None
    live: LiveView
    steps: StepLog
    notes: tuple[str, ...]
    load_s: float
