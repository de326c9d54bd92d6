"""From the engine's mail to text: the state of one request on the side of whoever asked.

A Job is one prompt with its n choices; each choice turns ids into text that no stop can take back. Knows no
queues, threads or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.core.step import TokenLogprob
from spola.engine.events import Summary
from spola.runtime.loop import Mail, Refusal
from spola.runtime.step_log import StepTrace
from spola.text.stops import TextStream
from spola.text.tokenizer import Tokenizer

# Errors of a running request that are its own doing: sent again, it would fail again.
_OWN_FAULTS = ("the mask allows no token", "the stop or grammar matcher failed")

__all__ = ["Choice", "Delta", "FinishReason", "Job"]

FinishReason = Literal["stop", "length", "abort", "error"]


class Delta(msgspec.Struct):
    """News of choice ``index``: text that may be shown, ids generated, and how it ended if it did."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: SpolaError | None = None
    stop_id: int | None = None  # the last of ``token_ids`` ended the answer and is no text
    cut: bool = False  # a stop string has ended the text


@dataclass(slots=True)
class Choice:
    """What is known of one choice. ``stop_reason`` is the stop string or stop token id that ended it.

    ``stop_id`` is the last of ``token_ids`` if that is an end, not text.
    """

    id: int
    index: int
    stream: TextStream
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stop_id: int | None = None
    error: SpolaError | None = None
    summary: Summary | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    vector: bytes | None = None  # f32[hidden], of an embed request
    _push: Callable[[Iterable[int]], str] = field(init=False)

    def __post_init__(self) -> None:
        self._push = self.stream.way

    def gain(self, ids: Sequence[int]) -> str:
        """Tokens that are all text, and do not end the choice: what they add to ``text``."""
        text = self._push(ids)
        self.token_ids += ids
        self.text += text
        return text


class Job:
    """One prompt with its choices: ``take`` mail for any of them.

    ``prompt_ids`` are the ids the engine was given. ``done`` once every choice has ended. ``visible`` are
    special ids whose text is part of the answer. ``trace``: its steps, if they are followed.
    """

    def __init__(
        self,
        ids: Sequence[int],
        prompt_ids: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self.ids = tuple(ids)
        self.prompt_ids = prompt_ids
        self.params = params
        self.trace: StepTrace | None = None
        self.choices = [
            Choice(id, index, self._stream(params, tokenizer, visible)) for index, id in enumerate(ids)
        ]
        self._by_id = {choice.id: choice for choice in self.choices}
        self._left = len(self.choices)

    @staticmethod
    def _stream(params: SamplingParams, tokenizer: Tokenizer, visible: frozenset[int]) -> TextStream:
        return TextStream(
            tokenizer,
            params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
            visible=visible,
        )

    @property
    def done(self) -> bool:
        return self._left == 0

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        first = self.choices[0].summary
        return first.n_cached if first else 0

    def take(self, mail: Mail) -> Delta:
        """Follow one piece of news. Raises KeyError for a request that is not this job's."""
        choice = self._by_id[mail.id]
        if choice.finish_reason is not None:
            return Delta(choice.index)
        if isinstance(mail, Refusal):
            choice.error = mail.error
            self._end(choice, "error")
            return Delta(choice.index, finish_reason="error", error=mail.error)
        if not (mail.finish_reason or mail.logprobs or mail.prompt_logprobs or mail.vector):
            # As nearly always: only ids.
            ids = mail.ids
            return Delta(choice.index, choice.gain(ids), ids, cut=choice.stream.stopped)
        shown = mail.ids[:-1] if mail.stop_id is not None else mail.ids
        text = choice.stream.push(shown)
        choice.token_ids += mail.ids
        choice.logprobs += mail.logprobs or ()
        choice.prompt_logprobs += mail.prompt_logprobs or ()
        choice.vector = mail.vector or choice.vector
        if mail.finish_reason is not None:
            text += choice.stream.finish()
            choice.summary = mail.summary
            choice.stop_id = mail.stop_id
            if mail.late and mail.error is not None:
                choice.error = RequestError(mail.error, status=503, code="timeout")
            elif mail.error is not None:
                choice.error = _error(mail.error)
            if choice.stream.matched is not None:
                choice.stop_reason = choice.stream.matched
            elif mail.stop_id in self.params.stop_token_ids:
                choice.stop_reason = mail.stop_id
            self._end(choice, mail.finish_reason)
        choice.text += text
        return Delta(
            choice.index,
            text,
            mail.ids,
            mail.logprobs or (),
            choice.finish_reason,
            choice.error,
            mail.stop_id,
            choice.stream.stopped,
        )

    def _end(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish_reason = reason
        self._left -= 1


def _error(said: str) -> SpolaError:
    return RequestError(said) if said.startswith(_OWN_FAULTS) else SpolaError(said)
