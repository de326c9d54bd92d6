"""``AsyncLLM``: a model in this process, for programs with an event loop. Names are vLLM's.

The engine runs on its own thread; nothing here blocks the loop but loading and ``shutdown``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.runtime.desk import Desk
from spola.runtime.local import LocalModel, Prepared
from spola.runtime.lora import LoRARequest, adapter_names
from spola.runtime.outputs import RequestOutput, output_of
from spola.runtime.prompts import parse_prompt
from spola.runtime.service import Service
from spola.runtime.ticket import Ticket
from spola.runtime.turn import Asked

__all__ = ["AsyncLLM"]


class AsyncLLM(LocalModel):
    """A loaded model. Shut it down, or use it as a context manager.

    The other ``options`` are ``LocalModel``'s, as are the errors.
    """

    def __init__(self, model: str | None = None, *, itl_target_s: float | None = 0.1, **options: Any) -> None:
        super().__init__(model, itl_target_s=itl_target_s, **options)

    def _attach(self, service: Service, lora: Mapping[str, str] | None = None) -> None:
        super()._attach(service, lora)
        self._desk: tuple[asyncio.AbstractEventLoop, Desk] | None = None
        self._tickets: dict[str, Ticket | None] = {}  # None: not yet with the engine

    def generate(
        self,
        prompt: str | Sequence[int] | Mapping[str, Any],
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to one prompt (text, ids or vLLM's prompt dict) as it grows.

        Each output holds all there is so far; the last has ``finished``. A slow reader gets fewer, larger
        pieces. Leaving the generator, or cancelling the task in it, aborts the request.
        Lower ``priority`` goes first. Raises RequestError for what is wrong with the request or an id that is
        in use, SpolaError when it ends in an error.
        """
        text, given = parse_prompt(prompt)
        params = sampling_params or SamplingParams()

        def prepare() -> Prepared:
            ids = self._service.prompt_ids(text if text is not None else given)
            wanted = params.structured_outputs
            grammar = None if wanted is None else self._service.grammars.of(wanted)
            return Prepared(ids=ids, params=params, grammar=grammar)

        return self._answer(prepare, text, request_id, priority, lora_request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to a conversation, through the model's chat template; else as ``generate``.

        The fields are those of ``LLM.chat``. ``content``, ``reasoning`` and ``tool_calls`` grow as ``text``
        does: the arguments of the last call are a beginning of JSON until it is whole.
        """
        asked = Asked(
            messages=messages,
            tools=tools or (),
            tool_choice=tool_choice,
            parallel=parallel_tool_calls,
            variables=chat_template_kwargs or {},
            open_turn=add_generation_prompt,
            continue_final=continue_final_message,
        )
        prepare = partial(self._prepared_turn, asked, sampling_params or SamplingParams(), response_format)
        return self._answer(prepare, None, request_id, priority, lora_request)

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests; their generators give a last output with the finish reason "abort".

        Unknown and finished ids are ignored.
        """
        for id in [request_id] if isinstance(request_id, str) else request_id:
            if id in self._tickets:
                ticket = self._tickets[id]
                if ticket is not None:
                    self._service.abort(ticket.job)
                else:
                    del self._tickets[id]

    def shutdown(self) -> None:
        """Abort what runs and free the model; waits for the step in flight. Idempotent."""
        self._closer()

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    async def _answer(
        self,
        prepare: Callable[[], Prepared],
        text: str | None,
        request_id: str,
        priority: int,
        lora: LoRARequest | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if request_id in self._tickets:
            raise RequestError(f"request_id {request_id!r:.80} is in use", param="request_id")
        self._tickets[request_id] = None
        desk, ticket = self._here(), None
        try:
            made = await asyncio.to_thread(prepare)
            early = request_id not in self._tickets  # aborted while it was being tokenized
            how: dict[str, Any] = {"priority": priority, "adapter": adapter_names(lora, 1, self._lora)[0]}
            ticket = desk.submit(made.ids, made.params, **made.how, **how)
            self._tickets[request_id] = ticket
            if early:
                self._service.abort(ticket.job)
            while not ticket.job.done:
                for delta in await ticket.get():
                    if delta.error is not None:
                        raise delta.error
                yield output_of(request_id, text, ticket.job, self._service.tokenizer, made.reader)
        finally:
            self._tickets.pop(request_id, None)
            if ticket is not None:
                desk.leave(ticket)

    def _here(self) -> Desk:
        """The desk of the running event loop; one loop at a time has requests."""
        loop = asyncio.get_running_loop()
        if self._desk is None or self._desk[0] is not loop:
            if self._desk is not None and self._desk[1].busy:
                raise SpolaError("this AsyncLLM has requests in another event loop")
            self._desk = (loop, Desk(self._service))
        return self._desk[1]
