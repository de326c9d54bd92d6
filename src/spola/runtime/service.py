"""Service: one loaded model that answers prompts. What LLM, the server and the command line share.

Turns text and messages into ids, checks a request before it is queued, and hands it to the engine thread.
Following the answer is ``runtime.answer``.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spola.core.errors import RequestError
from spola.core.guard import Guard
from spola.core.params import SamplingParams
from spola.core.step import Want
from spola.engine.request import Request
from spola.runtime.answer import Job
from spola.runtime.guards import PaddingGuard, real_tokens
from spola.runtime.loaded import Loaded
from spola.runtime.loop import EngineLoop, Mailbox
from spola.runtime.prompts import bad_sequences, encode_chat
from spola.runtime.step_log import StepTrace
from spola.text.chat import no_template
from spola.text.grammar import Grammar, Grammars
from spola.text.grammar_guard import BothGuards
from spola.text.stops import StopGuard

__all__ = ["Service"]

Prompt = str | Sequence[int]


class Service:
    """A model, its engine thread and its text side. Any thread may call it; ``close`` when done.

    ``metrics`` are the engine's, to be read at any time.
    """

    def __init__(self, loop: EngineLoop, loaded: Loaded) -> None:
        self.loop = loop
        self.spec = loaded.spec
        self.tokenizer = loaded.tokenizer
        self.template = loaded.template
        self.defaults = loaded.defaults
        self.dtypes = loaded.dtypes
        self.config = loaded.config
        self.machine = loaded.machine
        self.metrics = loaded.metrics
        self.timeline = loaded.timeline
        self.live = loaded.live
        self.steps = loaded.steps
        self.notes = loaded.notes
        self.load_s = loaded.load_s
        self.grammars = Grammars(self.tokenizer)
        self._real = real_tokens(self.tokenizer, self.spec.vocab)

    def prompt_ids(self, prompt: Prompt, *, add_special: bool = True) -> list[int]:
        """The ids of a prompt that is not a chat: text, in which special tokens are read, or ids as given.

        ``add_special`` False: no BOS before the text, whatever the model says.

        Raises RequestError for text that is no Unicode, or far too long to be worth tokenizing, and for ids
        that are not in the vocabulary.
        """
        if isinstance(prompt, str):
            self.check_length(prompt)
            bos = None if add_special else False
            return self.tokenizer.encode(prompt, add_bos=bos, add_eos=False, parse_special=True)
        ids = list(prompt)
        self.tokenizer.check_ids(ids, "prompt")
        return ids

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation, as the model's template writes it, ready for the assistant's answer.

        Raises RequestError when there is no template, or with the words of the template when it refuses.
        """
        if self.template is None:
            raise no_template()
        return encode_chat(self.tokenizer, self.template, messages, self.check_length)[0]

    def check_length(self, text: str) -> None:
        """Refuse before tokenizing what cannot fit: megabytes of text take seconds."""
        most, least = self.config.max_model_len, self.tokenizer.least_tokens(text)
        if least > most:
            raise RequestError(
                f"the prompt has {len(text)} characters, at least {least} tokens; prompt and answer together "
                f"can have {most} at most",
                param="prompt",
                code="context_length_exceeded",
            )

    def defaults_with(self, **given: Any) -> SamplingParams:
        """SamplingParams from what is given (None: not given), else the model's own settings, else greedy.

        Without ``max_tokens`` an answer may fill the context.
        """
        fields = {"temperature": 0.0, "max_tokens": None} | dict(self.defaults)
        fields |= {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**fields)

    def check(self, ids: Sequence[int], params: SamplingParams) -> None:
        """Raise RequestError for what can be seen to be wrong before the engine is asked."""
        most = self.config.max_model_len
        if not ids:
            raise RequestError("the prompt is empty", param="prompt")
        if len(ids) >= most:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; prompt and answer together can have {most} at most",
                param="prompt",
                code="context_length_exceeded",
            )
        self.tokenizer.check_ids(params.stop_token_ids, "stop_token_ids")
        self.tokenizer.check_ids(params.logit_bias or (), "logit_bias")
        self.tokenizer.check_ids(params.allowed_token_ids or (), "allowed_token_ids")

    def check_adapter(self, name: str | None) -> None:
        """Raise RequestError for an adapter that was not loaded."""
        if name is not None and name not in self.config.adapters:
            known = ", ".join(self.config.adapters) or "none"
            raise RequestError(
                f"adapter {str(name)[:100]!r} is not loaded; there are: {known}", param="adapter"
            )

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        mailbox: Mailbox,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        key: str = "",
        weight: float = 1.0,
        timeout_s: float | None = None,
        visible: frozenset[int] = frozenset(),
        grammar: Grammar | None = None,
        start_within_s: float | None = None,
        want: Want = "sample",
        follow: bool = False,
    ) -> Job:
        """Queue ``ids`` with all its choices; their mail goes to ``mailbox``. Lower ``priority`` goes first.

        ``key`` is whose request it is: within a class keys get shares by their ``weight``. What is not
        finished after ``timeout_s`` ends with an error, as does what has not begun after ``start_within_s``.
        ``visible`` are special ids whose text is part of the answer. ``grammar`` is the compiled form that
        the answer must have; without one, ``params.structured_outputs`` is compiled here: milliseconds.
        ``want`` other than sample gives no text: "embed_last" or "embed_mean" a vector.
        ``follow``: ``Job.trace`` keeps the steps, to be explained.
        ``adapter`` is one of ``config.adapters``. Requests whose ``cache_salt`` or adapter differ share
        nothing in the prefix cache, so that how soon an answer begins says nothing about what others have
        asked. Raises as ``check``.
        """
        self.check(ids, params)
        self.check_adapter(adapter)
        job = Job([self.loop.next_id() for _ in range(params.n)], ids, params, self.tokenizer, visible)
        if follow:
            job.trace = StepTrace(adapter, key, weight)
            self.steps.follow(job.ids, job.trace)
        seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        now = self.loop.clock()
        if grammar is None and params.structured_outputs is not None:
            grammar = self.grammars.of(params.structured_outputs)
        params = msgspec.structs.replace(params, structured_outputs=None)
        # The choices have one prompt: its log-probabilities are computed for the first.
        later = msgspec.structs.replace(params, prompt_logprobs=None)
        bad_ids = bad_sequences(self.tokenizer, params.bad_words)
        requests = [
            Request(
                id=choice.id,
                ids=ids,
                params=later if choice.index else params,
                seed=seed,
                choice=choice.index,
                eos_ids=self.tokenizer.eos_ids,
                guard=self._guard(params, visible, grammar) if want == "sample" else None,
                want=want,
                bad_ids=bad_ids,
                priority=priority,
                arrival_s=now,
                salt=cache_salt,
                adapter=adapter,
                key=key,
                weight=weight,
                leader=job.ids[0] if params.n > 1 else None,
                deadline_s=None if timeout_s is None else now + timeout_s,
                start_by_s=None if start_within_s is None else now + start_within_s,
            )
            for choice in job.choices
        ]
        self.loop.add(requests, mailbox)
        return job

    def abort(self, job: Job) -> None:
        """End every choice of ``job`` that is not finished. Idempotent."""
        self.loop.abort(job.ids)

    def close(self) -> None:
        """End the engine thread and free the model. Idempotent."""
        self.loop.close()

    def _guard(
        self, params: SamplingParams, visible: frozenset[int], grammar: Grammar | None
    ) -> Guard | None:
        guard: Guard | None = None
        if params.stop:
            guard = StopGuard(
                self.tokenizer,
                params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
                visible=visible,
            )
        if grammar is not None:  # it allows tokens of the tokenizer only: no padding either
            return grammar.guard() if guard is None else BothGuards(grammar.guard(), guard)
        return guard if self._real is None else PaddingGuard(self._real, guard)
