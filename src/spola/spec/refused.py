"""Why model types that people do have are not run, by name. What is run, ``spec.catalog`` says."""

from __future__ import annotations

__all__ = ["why_file_refused", "why_refused"]

_LATENT = "its latent attention is of a kind that no backend computes yet"
_JOINED = "its files hold keys and values of a latent in one matrix; use a Hugging Face folder of the model"
_RECURRENT = "it has recurrent layers, which no backend computes"
_HYBRID = "it mixes attention with recurrent layers, which no backend computes"
_ENCODER = "it has an encoder, or is one; only decoders are run"

# ``model_type`` of config.json and ``general.architecture`` of GGUF.
_WHY = {
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "kimi_k2", "mistral4"), _LATENT),
    **dict.fromkeys(("glm4_moe_lite", "longcat_flash"), _LATENT),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "xlstm"), _RECURRENT),
    **dict.fromkeys(("rwkv", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"), _RECURRENT),
    **dict.fromkeys(("jamba", "bamba", "zamba", "zamba2", "falcon_h1", "falcon-h1", "nemotron_h"), _HYBRID),
    **dict.fromkeys(("granitemoehybrid", "granitehybrid", "recurrent_gemma", "lfm2", "plamo2"), _HYBRID),
    **dict.fromkeys(("qwen3_next", "qwen3next", "qwen3_5", "qwen35", "kimi_linear", "kimi-linear"), _HYBRID),
    **dict.fromkeys(("t5", "mt5", "bart", "whisper", "bert", "nomic-bert", "modernbert"), _ENCODER),
}


# Architectures of GGUF whose folders are read.
_FILES = {"minicpm3": _JOINED}


def why_file_refused(arch: str) -> str:
    """As ``why_refused``, of an architecture of GGUF alone."""
    why = _FILES.get(arch)
    return f": {why}" if why else why_refused(arch)


def why_refused(kind: str) -> str:
    """ ": it has ..." for a model type or architecture that is known and not run, else an empty string."""
    why = _WHY.get(kind)
    return f": {why}" if why else ""
