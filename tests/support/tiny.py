"""Seeded tiny llama models: as tensors in memory, as a GGUF file, as a Hugging Face folder.

The weights are random, but scaled so that activations stay near one and the best token leads clearly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spola.backends.reference.blocks import decode
from spola.core.dtype import BY_NAME
from spola.core.runner import RunnerConfig, Tensor
from spola.formats.gguf_write import NewTensor, write_gguf
from spola.formats.safetensors import write_safetensors
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf
from spola.spec.kv import kv_groups
from spola.spec.manifest import TensorInfo, manifest
from support.blocks import encode, make_tensor

__all__ = ["SPECIALS", "Tiny", "TinyModel", "byte_letters", "write_tiny_gguf", "write_tiny_safetensors"]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "i n", "Ġt he", "a n", "e r", "o n", "Ġ a", "r e", "Ġ Ġ")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """The shape and the storage of a tiny model; ``dtype`` is of its matrices, ``dtypes`` overrides by stem.

    A stem is the end of a canonical name without ``.weight``, as "embedding" or "mlp.down".
    """

    seed: int = 0
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ff: int = 128
    vocab: int = 288
    context: int = 1024
    tied: bool = True
    biases: bool = False
    rope_base: float = 10000.0
    rope: Mapping[str, Any] = field(default_factory=dict)  # further keys of {arch}.rope
    rope_factors: bool = False
    dtype: str = "Q4_1"
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        """The GGUF keys of the model and of a byte-level tokenizer."""
        return {
            "general.architecture": "llama",
            "general.name": f"tiny-{self.seed}",
            "general.alignment": 32,
            "llama.block_count": self.layers,
            "llama.context_length": self.context,
            "llama.embedding_length": self.hidden,
            "llama.feed_forward_length": self.ff,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head_dim,
            "llama.attention.value_length": self.head_dim,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.head_dim,
            "llama.rope.freq_base": self.rope_base,
            **{f"llama.rope.{key}": value for key, value in self.rope.items()},
            **_tokenizer(self.vocab),
        }


class TinyModel:
    """A tiny model in memory. The same ``Tiny`` gives the same bytes everywhere."""

    def __init__(self, tiny: Tiny | None = None) -> None:
        self.tiny = tiny = tiny or Tiny()
        self.metadata = tiny.metadata()
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        if not tiny.tied:
            shapes["output.weight"] = ("", (tiny.vocab, tiny.hidden))
        if tiny.rope_factors:
            shapes["rope_freqs.weight"] = ("", (tiny.head_dim // 2,))
        self.spec: DecoderSpec = _spec(self.metadata, tiny, shapes)
        self.infos: list[TensorInfo] = manifest(self.spec)
        rng = np.random.default_rng([tiny.seed, 20])
        self.tensors: list[Tensor] = [self._make(info, rng) for info in self.infos]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def config(self, *, blocks: int = 64, **changes: Any) -> RunnerConfig:
        """What to load the model with; ``kv`` sets the type of K and V, or of each: "int8,f16"."""
        k, _, v = changes.pop("kv", "f16").partition(",")
        groups = kv_groups(self.spec, k, v or k)
        defaults = {"max_step_tokens": 4096, "max_seqs": 64, "max_model_len": self.tiny.context}
        return RunnerConfig(kv_groups=groups, kv_blocks=(blocks,) * len(groups), **(defaults | changes))

    def array(self, name: str) -> np.ndarray:
        """The tensor called ``name`` (canonical), decoded."""
        tensor = next(t for t in self.tensors if t.name == name)
        rows = 1 if len(tensor.shape) == 1 else tensor.shape[0]
        return decode(tensor.dtype, tensor.data, rows, tensor.shape[-1]).reshape(tensor.shape)

    def _make(self, info: TensorInfo, rng: np.random.Generator) -> Tensor:
        match info.role:
            case "norm":
                data, dtype = encode("F32", 1 + 0.1 * rng.standard_normal(info.shape)), "F32"
            case "bias":
                data, dtype = encode("F32", 0.2 * rng.standard_normal(info.shape)), "F32"
            case "rope":
                data, dtype = encode("F32", np.linspace(1, 8, info.shape[0])), "F32"
            case _:
                stem = info.name.removesuffix(".weight")
                named = (kind for end, kind in self.tiny.dtypes.items() if stem.endswith(end))
                dtype = next(named, self.tiny.dtype)
                std = 0.2 if info.role in ("embedding", "head") else info.shape[1] ** -0.5
                data = make_tensor(dtype, *info.shape, rng, std)
        return Tensor(info.name, dtype, info.shape, data)


def write_tiny_gguf(path: Path, tiny: Tiny | None = None) -> TinyModel:
    """Write the model as one GGUF file and return it."""
    model = TinyModel(tiny)
    tensors = [
        NewTensor(info.gguf, BY_NAME[tensor.dtype], tensor.shape, tensor.data)
        for info, tensor in zip(model.infos, model.tensors, strict=True)
    ]
    write_gguf(path, model.metadata, tensors)
    return model


def write_tiny_safetensors(folder: Path, tiny: Tiny | None = None, dtype: str = "F32") -> TinyModel:
    """Write the model as a Hugging Face folder: q and k in the half layout, weights decoded to ``dtype``."""
    model = TinyModel(tiny)
    tensors = []
    for info in model.infos:
        if info.role == "rope":
            raise ValueError("a Hugging Face folder has no tensor for rope factors")
        values = model.array(info.name)
        if info.name.endswith((".attention.q.weight", ".attention.k.weight")):
            values = half_layout(values, model.tiny.head_dim)
        if info.name.endswith((".attention.q.bias", ".attention.k.bias")):
            values = half_layout(values[:, None], model.tiny.head_dim)[:, 0]
        kind = dtype if values.ndim == 2 else "F32"
        tensors.append(NewTensor(info.hf[0], BY_NAME[kind], values.shape, encode(kind, values)))
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(model.tiny), indent=1))
    return model


def half_layout(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k [heads * head_dim, n] from interleaved pairs (GGUF) to halves (Hugging Face)."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def hf_config(tiny: Tiny) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.ff,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "vocab_size": tiny.vocab,
        "max_position_embeddings": tiny.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": tiny.rope_base,
        "hidden_act": "silu",
        "tie_word_embeddings": tiny.tied,
        "attention_bias": tiny.biases,
        "mlp_bias": tiny.biases,
        "torch_dtype": "float32",
    }


def _spec(metadata: Mapping[str, Any], tiny: Tiny, extra: Mapping[str, Any]) -> DecoderSpec:
    """Let ``from_gguf`` read the model: shapes follow from the sizes, so they are written out here once."""
    q, kv = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (tiny.vocab, tiny.hidden)}
    for i in range(tiny.layers):
        matrices = {
            "attn_q": (q, tiny.hidden),
            "attn_k": (kv, tiny.hidden),
            "attn_v": (kv, tiny.hidden),
            "attn_output": (tiny.hidden, q),
            "ffn_gate": (tiny.ff, tiny.hidden),
            "ffn_up": (tiny.ff, tiny.hidden),
            "ffn_down": (tiny.hidden, tiny.ff),
        }
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in matrices.items()}
        shapes |= {f"blk.{i}.{name}.weight": (tiny.hidden,) for name in ("attn_norm", "ffn_norm")}
        if tiny.biases:
            shapes |= {f"blk.{i}.{name}.bias": shape[:1] for name, shape in matrices.items()}
    shapes["output_norm.weight"] = (tiny.hidden,)
    spec, warnings = from_gguf(metadata, {name: ("", shape) for name, shape in shapes.items()} | dict(extra))
    assert warnings == []
    return spec


def _tokenizer(vocab: int) -> dict[str, Any]:
    """256 byte tokens, a few merges and three specials; the rest of the vocabulary is padding rows."""
    tokens = [*SPECIALS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    if len(tokens) > vocab:
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} entries, not {vocab}")
    prefix = "tokenizer.ggml."
    return {
        f"{prefix}model": "gpt2",
        f"{prefix}pre": "smollm",
        f"{prefix}tokens": tokens,
        f"{prefix}token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)),
        f"{prefix}merges": list(MERGES),
        f"{prefix}bos_token_id": 1,
        f"{prefix}eos_token_id": 2,
        f"{prefix}add_bos_token": False,
        f"{prefix}add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the rest are moved past 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]
