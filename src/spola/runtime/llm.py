"""``LLM``: a model in this process, for scripts and notebooks. Names are vLLM's.

Blocks the calling thread and needs no event loop; a running one (a notebook's) is left alone. The engine runs
on its own thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from spola.core.errors import RequestError
from spola.core.params import SamplingParams
from spola.core.structured import response_form
from spola.engine.drafter import DraftRule
from spola.runtime.answer import Job
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.loop import QueueMailbox
from spola.runtime.lora import LoRARequest, adapter_names
from spola.runtime.outputs import RequestOutput, StreamOutput, output_of
from spola.runtime.prompts import listed_prompts, parse_prompt
from spola.runtime.service import Service
from spola.runtime.turn import Asked, Turn, prepare_turn
from spola.text.tokenizer import Tokenizer

__all__ = ["LLM"]

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A loaded model. Close it, or use it as a context manager.

    ``model`` is a GGUF file, a Hugging Face folder, ``org/name[:TYPE]`` in the hub's cache, or ``smollm2``,
    which is also the default. ``weights`` quantizes it while it is loaded (``q8_0``, ``q4_k``). ``lora``:
    name -> folder of adapters that a ``LoRARequest`` may name. ``kv_memory`` in bytes or as a fraction,
    ``max_model_len`` in tokens; None chooses by what this machine has.
    ``speculate`` off, ngram or suffix drafts tokens from the text so far, ``draft=MODEL`` by a smaller model:
    the same output, in fewer steps. ``draft_rule`` rejection accepts more of a model's drafts when sampling,
    for a text that is as likely but another one. Raises ModelError, ConfigError or CapacityError in one line.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        backend: str = "native",
        threads: int | None = None,
        precise: bool = False,
        weights: str | None = None,
        lora: Mapping[str, str] | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 32,
        kv_dtype: str = "f16",
        kv_memory: int | float | None = None,
        chat_template: str | None = None,
        speculate: str = "off",
        draft_rule: DraftRule = "match",
        enable_prefix_caching: bool = True,
    ) -> None:
        options = Options(
            backend=backend,
            threads=threads,
            precise=precise,
            weights=weights,
            lora=tuple((lora or {}).items()),
            max_model_len=max_model_len,
            max_seqs=max_num_seqs,
            kv_dtype=kv_dtype,
            kv_memory=kv_memory,
            chat_template=chat_template,
            speculate=speculate,
            draft_rule=draft_rule,
            prefix_cache=enable_prefix_caching,
        )
        self._attach(build_service(None if model is None else str(model), options), lora)

    @classmethod
    def from_service(cls, service: Service) -> LLM:
        """An LLM over a service that is already running; closing it closes the service."""
        llm = cls.__new__(cls)
        llm._attach(service)
        return llm

    def _attach(self, service: Service, lora: Mapping[str, str] | None = None) -> None:
        self._service = service
        self._lora = dict(lora or dict.fromkeys(service.config.adapters, ""))
        self._count = 0
        # Also when the object is dropped, or the program ends, without a call of close().
        self._closer = weakref.finalize(self, service.close)

    @property
    def service(self) -> Service:
        return self._service

    def get_tokenizer(self) -> Tokenizer:
        return self._service.tokenizer

    def generate(
        self,
        prompts: str | Sequence[Any] | Mapping[str, Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete ``prompts``: one or a list of texts, lists of token ids, or vLLM's prompt dicts.

        One SamplingParams for all, or one each; the same of ``lora_request``. All run together; outputs are
        in the order of the prompts. A malformed prompt raises RequestError before anything runs; what goes
        wrong later is in that output's ``error``.
        """
        parsed = [parse_prompt(prompt) for prompt in listed_prompts(prompts)]
        ids = [self._service.prompt_ids(text if text is not None else given) for text, given in parsed]
        return self._run(ids, [text for text, _ in parsed], sampling_params, lora_request)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template.

        ``tools``, ``tool_choice``, ``parallel_tool_calls`` and ``response_format`` are OpenAI's; what the
        answers say is in ``content``, ``reasoning`` and ``tool_calls`` of each. ``continue_final_message``:
        the answer goes on with the last message. Raises RequestError naming the field.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise RequestError("messages must be a non-empty list of messages", param="messages")
        many: Any = messages if not isinstance(messages[0], Mapping) else [messages]
        form, field = (None, "") if response_format is None else response_form(dict(response_format))
        params = _params(sampling_params, len(many))
        turns = []
        for conversation, one in zip(many, params, strict=True):
            if form is not None and one.structured_outputs is not None:
                raise RequestError(
                    "give response_format or structured_outputs, not both", param="response_format"
                )
            asked = Asked(
                messages=conversation,
                tools=tools or (),
                tool_choice=tool_choice,
                parallel=parallel_tool_calls,
                form=form or one.structured_outputs,
                form_field=field or "structured_outputs",
                variables=chat_template_kwargs or {},
                open_turn=add_generation_prompt,
                continue_final=continue_final_message,
            )
            turns.append(prepare_turn(self._service, asked))
        unused = next((name for turn in turns for name in turn.unused), None)
        if unused is not None:
            raise RequestError(f"{unused}: this model's template does not read it", param=unused)
        return self._run([turn.ids for turn in turns], [None] * len(turns), params, lora_request, turns)

    def stream(
        self, prompt: str | Sequence[int] | Messages, sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamOutput]:
        """Pieces of the answer to one prompt (text or ids) or conversation, as they come.

        Leaving the iterator early aborts the request. Raises SpolaError when the request ends in an error.
        """
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            ids = self._service.chat_ids(prompt)  # type: ignore[arg-type]
        else:
            ids = self._service.prompt_ids(prompt)  # type: ignore[arg-type]
        mailbox = QueueMailbox()
        job = self._service.submit(ids, sampling_params or SamplingParams(), mailbox)
        return self._pieces(job, mailbox)

    def close(self) -> None:
        """Abort what runs and free the model. Idempotent."""
        self._closer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _pieces(self, job: Job, mailbox: QueueMailbox) -> Iterator[StreamOutput]:
        try:
            while not job.done:
                for mail in mailbox.get():
                    delta = job.take(mail)
                    if delta.error is not None:
                        raise delta.error
                    if delta.text or delta.token_ids or delta.finish_reason:
                        yield StreamOutput(
                            delta.index, delta.text, list(delta.token_ids), delta.finish_reason
                        )
        finally:
            if not job.done:
                self._service.abort(job)

    def _run(
        self,
        prompts: Sequence[list[int]],
        texts: Sequence[str | None],
        given: SamplingParams | Sequence[SamplingParams] | None,
        lora: LoRARequest | Sequence[LoRARequest | None] | None,
        turns: Sequence[Turn] | None = None,
    ) -> list[RequestOutput]:
        params = _params(given, len(prompts))
        adapters = adapter_names(lora, len(prompts), self._lora)
        more: list[dict[str, Any]] = [{}] * len(prompts)
        if turns is not None:
            more = [{"grammar": turn.grammar, "visible": turn.visible} for turn in turns]
            # The form is in the turn's grammar, where it belongs behind the reasoning.
            params = [msgspec.structs.replace(one, structured_outputs=None) for one in params]
        for ids, one in zip(prompts, params, strict=True):
            self._service.check(ids, one)
        for adapter in adapters:
            self._service.check_adapter(adapter)
        mailbox = QueueMailbox()
        jobs: list[Job] = []
        try:
            jobs += (
                self._service.submit(i, p, mailbox, adapter=a, **how)
                for i, p, a, how in zip(prompts, params, adapters, more, strict=True)
            )
            by_id = {id: job for job in jobs for id in job.ids}
            while not all(job.done for job in jobs):
                for mail in mailbox.get():
                    by_id[mail.id].take(mail)
        except BaseException:  # also an interrupt: nothing may go on generating for nobody
            for job in jobs:
                self._service.abort(job)
            raise
        out = []
        for place, (text, job) in enumerate(zip(texts, jobs, strict=True)):
            reader = None if turns is None else turns[place].reader
            out.append(output_of(str(self._count), text, job, self._service.tokenizer, reader))
            self._count += 1
        return out


def _params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if given is None:
        return [SamplingParams()] * count
    if isinstance(given, SamplingParams):
        return [given] * count
    if len(given) != count:
        raise RequestError(f"{len(given)} sampling_params for {count} prompts", param="sampling_params")
    return given
