"""What tests of sampling share: a tiny model, a prompt, and the logits after it."""

from __future__ import annotations

import numpy as np

from spola.core.params import SamplingParams
from support.drive import Driver, Job
from support.tiny import Tiny

__all__ = ["PROMPT", "TINY", "V", "logits_after", "sampled"]

TINY = Tiny(seed=11, vocab=288)
V = TINY.vocab
PROMPT = np.random.default_rng(2).integers(0, V, 40).tolist()


def logits_after(driver: Driver, prompt: list[int]) -> np.ndarray:
    return driver.alone(Job(prompt, want="logits")).logits[-1]


def sampled(**fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0} | fields)
