"""What people call the models that the rows describe, for the documentation. Reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOG", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """``model_type`` as in ``config.json``, ``arch`` as in GGUF. ``limits``: what is refused or decided.

    ``folders``, ``files``: whether Hugging Face folders of it are read, and whether GGUF files.
    """

    models: str
    model_type: str
    arch: str
    limits: str = ""
    folders: bool = True
    files: bool = True


_DYNAMIC = "no positions past `max_position_embeddings`, where dynamic rope scaling would begin"
_LATENT = "biases; adapters on `kv_b_proj`; quantized GGUF files made before the absorbed form; FP8 folders"

CATALOG = (
    Entry("Llama 1 to 3.x, SmolLM, SmolLM2 and others of that shape", "llama", "llama", _DYNAMIC),
    Entry(
        "Mistral, Mistral Nemo, Mistral Small 3",
        "mistral",
        "llama",
        "text only: of a `mistral3` with images that part is loaded",
    ),
    Entry("Mixtral", "mixtral", "llama"),
    Entry("Qwen 2, Qwen 2.5", "qwen2", "qwen2", "GGUF files say nothing of windows"),
    Entry("Qwen 1.5 and 2 with experts", "qwen2_moe", "qwen2moe"),
    Entry("Qwen 3", "qwen3", "qwen3", "GGUF files say nothing of windows"),
    Entry("Qwen 3 with experts", "qwen3_moe", "qwen3moe", "in GGUF every layer has experts"),
    Entry("Gemma 1", "gemma", "gemma"),
    Entry("Gemma 2", "gemma2", "gemma2", "attention in both directions"),
    Entry("Gemma 3", "gemma3_text", "gemma3", "text only: of a model with images that part is loaded"),
    Entry(
        "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
        "phi3",
        "phi3",
        "the set of LongRoPE factors is chosen when the model is loaded, by the positions served",
    ),
    Entry("Granite 3 (dense)", "granite", "granite"),
    Entry("SmolLM3", "smollm3", "smollm3", "in GGUF every fourth layer has no rope"),
    Entry("OLMo 2", "olmo2", "olmo2"),
    Entry("OLMo 3", "olmo3", "olmo2"),
    Entry("OLMoE", "olmoe", "olmoe", "clip_qkv"),
    Entry("InternLM2, InternLM2.5", "internlm2", "internlm2", _DYNAMIC),
    Entry(
        "MiniCPM 1 and 2, MiniCPM4 without sparse attention",
        "minicpm",
        "minicpm",
        "experts; sparse attention; GGUF files without the three scales",
    ),
    Entry(
        "Baichuan 7B",
        "baichuan",
        "baichuan",
        "Baichuan 13B (ALiBi), folders of Baichuan 2 (normalised head); GGUF does not tell Baichuan 2 from 1",
    ),
    Entry(
        "MiniCPM3",
        "minicpm3",
        "minicpm3",
        "folders only: its GGUF files hold keys and values of the latent in one quantized matrix",
        files=False,
    ),
    Entry("DeepSeek V2", "deepseek_v2", "deepseek2", _LATENT),
    Entry("DeepSeek V3, Moonlight", "deepseek_v3", "deepseek2", _LATENT),
    Entry("GPT-2", "gpt2", "gpt2", "in GGUF no scaling by layer"),
    Entry("GPT-NeoX, Pythia", "gpt_neox", "gptneox", "in GGUF the activation is the exact gelu"),
    Entry("StarCoder 2", "starcoder2", "starcoder2"),
    Entry("Falcon 1", "falcon", "falcon", "ALiBi; in GGUF only the parallel form"),
    Entry("StableLM 2", "stablelm", "stablelm", "norms of q and k for each head"),
    Entry("Phi-1.5, Phi-2", "phi", "phi2", "norms of q and k"),
    Entry("gpt-oss", "gpt_oss", "gpt-oss", "GGUF only: its folders are quantized (MXFP4)", folders=False),
    Entry("Command R", "cohere", "command-r", "norms of q and k"),
    Entry("Command R7B, Command A", "cohere2", "cohere2"),
    Entry("GLM-4 9B (of 2024), as converted for transformers", "glm", "chatglm"),
    Entry("GLM-4 (of 2025)", "glm4", "glm4"),
)
