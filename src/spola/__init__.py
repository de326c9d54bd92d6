"""spola: an LLM inference engine and server.

``LLM``, ``AsyncLLM`` and ``SamplingParams`` are loaded when first used, so that importing the package,
or one part of it, does not pull in the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spola.core.params import SamplingParams
    from spola.core.structured import StructuredOutputsParams
    from spola.runtime.async_llm import AsyncLLM
    from spola.runtime.llm import LLM
    from spola.runtime.lora import LoRARequest

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "LoRARequest",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_LAZY = {
    "AsyncLLM": "spola.runtime.async_llm",
    "LLM": "spola.runtime.llm",
    "LoRARequest": "spola.runtime.lora",
    "SamplingParams": "spola.core.params",
    "StructuredOutputsParams": "spola.core.structured",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'spola' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
