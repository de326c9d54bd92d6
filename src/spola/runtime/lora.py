"""``LoRARequest``: which adapter a call of ``LLM`` uses. Names are vLLM's.

Adapters are loaded with the model (``LLM(lora={"name": "folder"})``); a request names one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spola.core.errors import RequestError

__all__ = ["LoRARequest", "adapter_names"]


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """``lora_name`` is the name the adapter was loaded under; ``lora_path``, when given, must be its folder.

    The number, which vLLM keeps adapters apart by, says nothing here: names do that.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""


def adapter_names(
    given: LoRARequest | Sequence[LoRARequest | None] | None, count: int, loaded: Mapping[str, str]
) -> list[str | None]:
    """The adapter of each of ``count`` prompts; ``loaded``: name -> folder.

    Raises RequestError for another number of requests, and for an adapter that was not loaded.
    """
    many = [given] * count if given is None or isinstance(given, LoRARequest) else list(given)
    if len(many) != count:
        raise RequestError(f"{len(many)} lora_requests for {count} prompts", param="lora_request")
    for one in many:
        if one is not None and one.lora_name not in loaded:
            raise RequestError(
                f"adapter {one.lora_name!r} is not loaded: give LLM(lora={{{one.lora_name!r}: folder}})",
                param="lora_request",
            )
        if (
            one is not None
            and one.lora_path
            and loaded[one.lora_name]
            and Path(one.lora_path) != Path(loaded[one.lora_name])
        ):
            raise RequestError(
                f"adapter {one.lora_name!r} was loaded from {loaded[one.lora_name]}, not {one.lora_path}",
                param="lora_request",
            )
    return [None if one is None else one.lora_name for one in many]
