"""Cut a text into windows and run them through an engine, by llama-perplexity's protocol.

The text is tokenized once, with the model's own begin-of-text rule, and cut into windows of ``ctx`` tokens;
what is left over is not used. Where the model begins a text with BOS, the first token of each window is
replaced by it. The first half of a window is context only: the ids after position ctx / 2 are scored.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.core.step import Want
from spola.engine.engine import Engine
from spola.engine.events import Event
from spola.engine.request import Request
from spola.text.tokenizer import Tokenizer

__all__ = ["Evaluator", "windows"]


def windows(tokenizer: Tokenizer, text: str, ctx: int, most: int | None = None) -> list[list[int]]:
    """The windows of ``text``, at most ``most`` of them. Raises RequestError for a text below one window."""
    if ctx < 4:
        raise RequestError(f"ctx must be at least 4 tokens, not {ctx}", param="ctx")
    ids = tokenizer.encode(text, add_eos=False)
    cut = [ids[start : start + ctx] for start in range(0, len(ids) - ctx + 1, ctx)][:most]
    if not cut:
        raise RequestError(f"the text has {len(ids)} tokens; one window needs {ctx}", param="text")
    if ids[0] == tokenizer.bos_id and tokenizer.encode("") == [tokenizer.bos_id]:
        for window in cut:
            window[0] = ids[0]
    return cut


class Evaluator:
    """Runs windows through a loaded engine, one at a time, on the calling thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ids = itertools.count(1)

    def scores(self, window: Sequence[int]) -> list[float]:
        """Log-probabilities of the ids after position len / 2 of ``window``, given all before each."""
        events = self._run(window, "score", len(window) // 2)
        return [score for event in events for score in event.scores or ()]

    def logits(self, window: Sequence[int]) -> Iterator[bytes]:
        """f32[n, V] pieces: what is predicted for the same ids that ``scores`` scores, in order."""
        for event in self._run(window[:-1], "logits", len(window) // 2):
            if event.logits:
                yield event.logits

    def close(self) -> None:
        self.engine.runner.close()

    def _run(self, ids: Sequence[int], want: Want, head_from: int) -> Iterator[Event]:
        params = SamplingParams(max_tokens=1)
        self.engine.add(Request(id=next(self._ids), ids=ids, params=params, want=want, head_from=head_from))
        while self.engine.has_work:
            for event in self.engine.step(time.monotonic()):
                if event.error is not None:
                    raise SpolaError(event.error)
                yield event
