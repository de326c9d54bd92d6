"""``LLM``: a model in this process, for scripts and notebooks. Names are vLLM's.

Blocks the calling thread and needs no event loop; a running one (a notebook's) is left alone. The engine runs
on its own thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spola.core.closing import Closing
from spola.core.errors import RequestError
from spola.core.params import SamplingParams
from spola.runtime.answer import Job
from spola.runtime.local import LocalModel, Prepared
from spola.runtime.loop import QueueMailbox
from spola.runtime.lora import LoRARequest, adapter_names
from spola.runtime.outputs import RequestOutput, StreamOutput, output_of
from spola.runtime.prompts import listed_prompts, parse_prompt
from spola.runtime.service import Service
from spola.runtime.turn import Asked

__all__ = ["LLM"]

Messages = Sequence[Mapping[str, Any]]


class LLM(LocalModel, Closing):
    """A loaded model. Close it, or use it as a context manager. The options are ``LocalModel``'s."""

    def _attach(self, service: Service, lora: Mapping[str, str] | None = None) -> None:
        super()._attach(service, lora)
        self._count = 0

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
        params = _params(sampling_params, len(ids))
        made = [Prepared(ids=i, params=one) for i, one in zip(ids, params, strict=True)]
        return self._run(made, [text for text, _ in parsed], lora_request)

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
        asked = Asked(
            messages=(),
            tools=tools or (),
            tool_choice=tool_choice,
            parallel=parallel_tool_calls,
            variables=chat_template_kwargs or {},
            open_turn=add_generation_prompt,
            continue_final=continue_final_message,
        )
        params = _params(sampling_params, len(many))
        made = [
            self._prepared_turn(replace(asked, messages=conversation), one, response_format)
            for conversation, one in zip(many, params, strict=True)
        ]
        return self._run(made, [None] * len(made), lora_request)

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
        made: Sequence[Prepared],
        texts: Sequence[str | None],
        lora: LoRARequest | Sequence[LoRARequest | None] | None,
    ) -> list[RequestOutput]:
        adapters = adapter_names(lora, len(made), self._lora)
        for one in made:
            self._service.check(one.ids, one.params)
        for adapter in adapters:
            self._service.check_adapter(adapter)
        mailbox = QueueMailbox()
        jobs: list[Job] = []
        try:
            jobs += (
                self._service.submit(one.ids, one.params, mailbox, adapter=adapter, **one.how)
                for one, adapter in zip(made, adapters, strict=True)
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
        for one, text, job in zip(made, texts, jobs, strict=True):
            out.append(output_of(str(self._count), text, job, self._service.tokenizer, one.reader))
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
