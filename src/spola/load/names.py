"""Short names of chat models that people run on CPUs: where they are, and what is known of them before a
download.

Sizes are rounded figures of the repositories' files, so that a person can choose; ``spola pull`` asks the hub
for the exact ones. Fetches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_NAME", "KNOWN", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """``name`` stands for ``repository:tag``. ``file_mb`` in 10^6 bytes; ``parameters`` in 10^6, all and
    those that a token goes through; ``kv_bytes``: of one token in f16. ``licence`` as the model's page calls
    it.
    """

    name: str
    repository: str
    tag: str
    file_mb: int
    parameters: int
    kv_bytes: int
    context: int
    licence: str

    @property
    def full_name(self) -> str:
        return f"{self.repository}:{self.tag}"


def _kv(layers: int, kv_heads: int, head_dim: int) -> int:
    return layers * kv_heads * head_dim * 2 * 2


_APACHE, _MIT = "Apache-2.0", "MIT"
KNOWN = (
    Known(
        "smollm2-360m",
        "bartowski/SmolLM2-360M-Instruct-GGUF",
        "Q4_K_M",
        271,
        362,
        _kv(32, 5, 64),
        8192,
        _APACHE,
    ),
    Known(
        "qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Q4_K_M", 491, 494, _kv(24, 2, 64), 32768, _APACHE
    ),
    Known("qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0", 639, 596, _kv(28, 8, 128), 40960, _APACHE),
    Known(
        "gemma3-1b",
        "bartowski/google_gemma-3-1b-it-GGUF",
        "Q4_K_M",
        806,
        1000,
        _kv(26, 1, 256),
        32768,
        "Gemma",
    ),
    Known(
        "llama3.2-1b",
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        "Q4_K_M",
        808,
        1236,
        _kv(16, 8, 64),
        131072,
        "Llama 3.2",
    ),
    Known(
        "smollm2-1.7b",
        "bartowski/SmolLM2-1.7B-Instruct-GGUF",
        "Q4_K_M",
        1056,
        1711,
        _kv(24, 32, 64),
        8192,
        _APACHE,
    ),
    Known(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        "Q4_K_M",
        1117,
        1544,
        _kv(28, 2, 128),
        32768,
        _APACHE,
    ),
    Known("qwen3-1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0", 1834, 1721, _kv(28, 8, 128), 40960, _APACHE),
    Known(
        "smollm3-3b",
        "bartowski/HuggingFaceTB_SmolLM3-3B-GGUF",
        "Q4_K_M",
        1915,
        3075,
        _kv(36, 4, 128),
        65536,
        _APACHE,
    ),
    Known(
        "llama3.2-3b",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "Q4_K_M",
        2019,
        3213,
        _kv(28, 8, 128),
        131072,
        "Llama 3.2",
    ),
    Known(
        "phi3.5-mini",
        "bartowski/Phi-3.5-mini-instruct-GGUF",
        "Q4_K_M",
        2393,
        3821,
        _kv(32, 32, 96),
        131072,
        _MIT,
    ),
    Known(
        "gemma3-4b",
        "bartowski/google_gemma-3-4b-it-GGUF",
        "Q4_K_M",
        2490,
        3880,
        _kv(34, 4, 256),
        131072,
        "Gemma",
    ),
    Known(
        "phi4-mini",
        "bartowski/microsoft_Phi-4-mini-instruct-GGUF",
        "Q4_K_M",
        2492,
        3836,
        _kv(32, 8, 128),
        131072,
        _MIT,
    ),
    Known("qwen3-4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2497, 4022, _kv(36, 8, 128), 40960, _APACHE),
    Known(
        "mistral-7b",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        "Q4_K_M",
        4373,
        7248,
        _kv(32, 8, 128),
        32768,
        _APACHE,
    ),
    Known(
        "qwen2.5-7b",
        "bartowski/Qwen2.5-7B-Instruct-GGUF",
        "Q4_K_M",
        4683,
        7616,
        _kv(28, 4, 128),
        32768,
        _APACHE,
    ),
    Known(
        "llama3.1-8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        "Q4_K_M",
        4921,
        8030,
        _kv(32, 8, 128),
        131072,
        "Llama 3.1",
    ),
    Known("qwen3-8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5028, 8191, _kv(36, 8, 128), 40960, _APACHE),
)

BY_NAME: dict[str, Known] = {known.name: known for known in KNOWN}
