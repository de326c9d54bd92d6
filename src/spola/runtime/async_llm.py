"""``AsyncLLM``: a model in this process, for programs with an event loop. Names are vLLM's.

The engine runs on its own thread; nothing here blocks the loop but loading and ``shutdown``.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any

from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.engine.drafter import DraftRule
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.desk import Desk
from spola.runtime.lora import LoRARequest, adapter_names
from spola.runtime.outputs import RequestOutput, output_of
from spola.runtime.prompts import parse_prompt
from spola.runtime.service import Service
from spola.runtime.ticket import Ticket
from spola.text.tokenizer import Tokenizer

__all__ = ["AsyncLLM"]


class AsyncLLM:
    """A loaded model. Shut it down, or use it as a context manager.

    Options are those of ``LLM``; ``itl_target_s`` is how soon running requests get their next token while
    prompts are read, None for as fast as it goes in all. Raises ModelError, ConfigError or CapacityError.
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
        itl_target_s: float | None = 0.1,
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
            itl_target_s=itl_target_s,
        )
        self._attach(build_service(None if model is None else str(model), options), lora)

    @classmethod
    def from_service(cls, service: Service) -> AsyncLLM:
        """An AsyncLLM over a service that is already running; shutting it down closes the service."""
        llm = cls.__new__(cls)
        llm._attach(service)
        return llm

    def _attach(self, service: Service, lora: Mapping[str, str] | None = None) -> None:
        self._service = service
        self._lora = dict(lora or dict.fromkeys(service.config.adapters, ""))
        self._desk: tuple[asyncio.AbstractEventLoop, Desk] | None = None
        self._tickets: dict[str, Ticket | None] = {}  # None: not yet with the engine
        self._closer = weakref.finalize(self, service.close)

    @property
    def service(self) -> Service:
        return self._service

    def get_tokenizer(self) -> Tokenizer:
        return self._service.tokenizer

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
        encode = self._service.prompt_ids
        source = text if text is not None else given
        return self._answer(encode, source, text, sampling_params, request_id, priority, lora_request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to a conversation, through the model's chat template; else as ``generate``."""
        encode = self._service.chat_ids
        return self._answer(encode, messages, None, sampling_params, request_id, priority, lora_request)

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
        encode: Any,
        prompt: Any,
        text: str | None,
        params: SamplingParams | None,
        request_id: str,
        priority: int,
        lora: LoRARequest | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if request_id in self._tickets:
            raise RequestError(f"request_id {request_id!r:.80} is in use", param="request_id")
        self._tickets[request_id] = None
        desk, ticket = self._here(), None
        try:
            ids = await asyncio.to_thread(encode, prompt)
            early = request_id not in self._tickets  # aborted while it was being tokenized
            how: dict[str, Any] = {"priority": priority, "adapter": adapter_names(lora, 1, self._lora)[0]}
            ticket = desk.submit(ids, params or SamplingParams(), **how)
            self._tickets[request_id] = ticket
            if early:
                self._service.abort(ticket.job)
            while not ticket.job.done:
                for delta in await ticket.get():
                    if delta.error is not None:
                        raise delta.error
                yield output_of(request_id, text, ticket.job, self._service.tokenizer)
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
