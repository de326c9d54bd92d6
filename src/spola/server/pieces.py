"""A text that goes on, as pieces with their tokens: for protocols that tell every token.

What is here stays inside the server: a Translator makes the client's words of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spola.core.step import TokenLogprob
from spola.runtime.answer import Delta, Job
from spola.server.logprobs import LEAST, Listed
from spola.server.replies import CompletionShape
from spola.server.shape import Style, whole_delta

__all__ = ["PieceShape", "entry_of"]


class PieceShape(CompletionShape):
    """Of one prompt and one choice. ``listed`` are the tokens whose text has been given, if ``style.top`` is
    not None; ``ids`` all that were generated; ``ended`` the token that ended the answer and is no text.
    """

    def __init__(self, style: Style) -> None:
        super().__init__(style)  # no echo, one choice

    def whole(self, jobs: Sequence[Job]) -> dict[str, Any]:
        choice = jobs[0].choices[0]
        piece = self._told(whole_delta(choice, 0))
        choices = [{"message": piece, "finish_reason": choice.finish_reason}]
        return {"choices": choices, "usage": self._usage(jobs)}

    def chunks(self, delta: Delta, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        return [{"choices": [{"delta": self._told(delta), "finish_reason": delta.finish_reason}]}]

    def _told(self, delta: Delta) -> dict[str, Any]:
        listed = self._list(0, delta)
        ended: TokenLogprob | None = None
        if delta.stop_id is not None:
            ended = delta.logprobs[-1] if delta.logprobs else TokenLogprob(delta.stop_id, 0.0)
        return {"content": delta.text, "listed": listed, "ids": delta.token_ids, "ended": ended}


def entry_of(token: Listed) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-probability of a listed token, and its alternatives."""
    assert token.entry is not None
    return max(token.entry.logprob, LEAST), token.entry.top
