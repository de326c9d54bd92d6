"""LocalModel: what ``LLM`` and ``AsyncLLM`` have in common: options, adapters, and a chat's turn.

Starts the service; sends no requests.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from spola.core.errors import RequestError
from spola.core.params import SamplingParams
from spola.core.structured import response_form
from spola.engine.drafter import DraftRule
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.service import Service
from spola.runtime.turn import Asked, prepare_turn
from spola.text.grammar import Grammar
from spola.text.parts import Reader
from spola.text.tokenizer import Tokenizer

__all__ = ["LocalModel", "Prepared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request ready for ``Service.submit``; ``reader`` makes a Reader for each answer of a chat."""

    ids: list[int]
    params: SamplingParams
    grammar: Grammar | None = None
    visible: frozenset[int] = frozenset()
    reader: Callable[[], Reader] | None = None

    @property
    def how(self) -> dict[str, Any]:
        return {"grammar": self.grammar, "visible": self.visible}


class LocalModel:
    """A loaded model in this process.

    ``model`` is a GGUF file, a Hugging Face folder, ``org/name[:TYPE]`` in the hub's cache, or ``smollm2``,
    which is also the default. ``weights`` quantizes it while it is loaded (``q8_0``, ``q4_k``). ``lora``:
    name -> folder of adapters that a ``LoRARequest`` may name. ``kv_memory`` in bytes or as a fraction,
    ``max_model_len`` in tokens; None chooses by what this machine has.
    ``speculate`` off, ngram or suffix drafts tokens from the text so far, ``draft=MODEL`` by a smaller model:
    the same output, in fewer steps. ``draft_rule`` rejection accepts more of a model's drafts when sampling,
    for a text that is as likely but another one. ``itl_target_s`` is how soon running requests get their next
    token while prompts are read, None for as fast as it goes in all. Raises ModelError, ConfigError or
    CapacityError in one line.
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
        itl_target_s: float | None = None,
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
    def from_service(cls, service: Service) -> Self:
        """The same over a service that is already running; closing it closes the service."""
        llm = cls.__new__(cls)
        llm._attach(service)
        return llm

    def _attach(self, service: Service, lora: Mapping[str, str] | None = None) -> None:
        self._service = service
        self._lora = dict(lora or dict.fromkeys(service.config.adapters, ""))
        # Also when the object is dropped, or the program ends, without a call to close it.
        self._closer = weakref.finalize(self, service.close)

    @property
    def service(self) -> Service:
        return self._service

    def get_tokenizer(self) -> Tokenizer:
        return self._service.tokenizer

    def _prepared_turn(
        self, asked: Asked, params: SamplingParams, response_format: Mapping[str, Any] | None
    ) -> Prepared:
        """The turn of a conversation. May take milliseconds. Raises RequestError naming the field."""
        form, field = (None, "") if response_format is None else response_form(dict(response_format))
        if form is not None and params.structured_outputs is not None:
            raise RequestError(
                "give response_format or structured_outputs, not both", param="response_format"
            )
        turn = prepare_turn(
            self._service,
            replace(
                asked,
                form=form or params.structured_outputs,
                form_field=field or "structured_outputs",
            ),
        )
        if turn.unused:
            raise RequestError(
                f"{turn.unused[0]}: this model's template does not read it", param=turn.unused[0]
            )
        return Prepared(
            ids=turn.ids,
            # The form is in the turn's grammar, where it belongs behind the reasoning.
            params=msgspec.structs.replace(params, structured_outputs=None),
            grammar=turn.grammar,
            visible=turn.visible,
            reader=turn.reader,
        )
