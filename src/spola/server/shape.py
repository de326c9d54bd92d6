"""What the answers in OpenAI's shapes have in common: their heads, chunks, events and frames."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spola.core.params import SamplingParams
from spola.runtime.answer import Choice, Delta, Job
from spola.server.logprobs import Listed, Track
from spola.server.sse import Frame, event
from spola.server.usage import usage
from spola.text.tokenizer import Tokenizer

__all__ = ["BaseShape", "Echo", "Shape", "Style", "whole_delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What the shapes must know of a request. ``top``: alternatives per token; None without logprobs."""

    model: str
    fingerprint: str
    tokenizer: Tokenizer
    params: SamplingParams
    top: int | None = None
    include_usage: bool = False
    running_usage: bool = False
    token_ids: bool = False
    visible: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompts, to be shown before the answers; ``only``: the generated token is not shown."""

    texts: tuple[str, ...]
    only: bool = False


class Shape(Protocol):
    """How an endpoint words an answer."""

    style: Style

    def whole(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The finished answer as one object."""

    def chunks(self, delta: Delta, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """A piece of a choice as zero or more chunks."""

    def events(self, delta: Delta, jobs: Sequence[Job]) -> bytes:
        """``chunks`` as server-sent events, joined: of the two ask for one only."""

    def frame(self, index: int) -> Frame | None:
        """What words all events of choice ``index`` to come but the last, if they differ in text alone."""

    def usage_chunk(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The chunk after the last piece, for ``include_usage``."""

    def explain_chunk(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """A part of the explanation, after the last piece."""

    def identify(self, id: str, created: int) -> None:
        """Replace the random id and the time, for answers that must be the same again."""


class BaseShape:
    """What the shapes of OpenAI's two endpoints share."""

    kind = ""
    chunk_kind = ""
    prefix = ""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._tracks: dict[int, Track] = {}
        self._frames: dict[int, Frame] = {}  # of choices whose events differ in their text alone
        self._plain = style.top is None and not style.token_ids and not style.running_usage
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": style.model,
            "system_fingerprint": style.fingerprint,
        }

    def identify(self, id: str, created: int) -> None:
        self._head |= {"id": f"{self.prefix}-{id}", "created": created}
        self._frames.clear()

    def chunks(self, delta: Delta, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def events(self, delta: Delta, jobs: Sequence[Job]) -> bytes:
        return b"".join([event(chunk) for chunk in self.chunks(delta, jobs)])

    def frame(self, index: int) -> Frame | None:
        return self._frames.get(index)

    def usage_chunk(self, jobs: Sequence[Job]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_kind, "choices": [], "usage": self._usage(jobs)}

    def explain_chunk(self, part: Mapping[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": [], "explain": part}
        return {**chunk, "usage": None} if self.style.include_usage else chunk

    def _usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        return usage(jobs)

    def _whole(self, jobs: Sequence[Job], choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.kind, "choices": choices, "usage": self._usage(jobs)}

    def _chunk(self, choice: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        if self.style.running_usage:
            return {**chunk, "usage": self._usage(jobs)}
        return {**chunk, "usage": None} if self.style.include_usage else chunk

    def _list(self, index: int, delta: Delta, offset: int = 0) -> list[Listed]:
        """The tokens that can be listed with ``delta``; none unless log-probabilities are wanted."""
        if self.style.top is None:
            return []
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = Track(
                self.style.tokenizer,
                skip_special=self.style.params.skip_special_tokens,
                visible=self.style.visible,
                offset=offset,
            )
        shown = len(delta.token_ids) - (delta.stop_id is not None)
        return track.push(
            delta.token_ids[:shown],
            delta.logprobs[:shown],
            delta.text,
            last=delta.finish_reason is not None,
            cut=delta.cut,
        )


def whole_delta(choice: Choice, index: int) -> Delta:
    """A finished choice as one Delta."""
    return Delta(
        index,
        choice.text,
        tuple(choice.token_ids),
        tuple(choice.logprobs),
        choice.finish_reason,
        choice.error,
        choice.stop_id,
        choice.stream.stopped,
    )
