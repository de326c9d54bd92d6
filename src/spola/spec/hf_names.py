"""What the checkpoints of each family call their tensors, where it is not what the llama family calls them.

Names are those of the ``transformers`` library's models. Whether a tensor is there, ``spec.sources`` sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spola.spec.manifest import TensorInfo
from spola.spec.sources import Merged, Names

__all__ = [
    "BAICHUAN",
    "DEEPSEEK",
    "FALCON",
    "GLM",
    "GLM4",
    "GPT2",
    "INTERNLM2",
    "LLAMA",
    "MIXTRAL",
    "NEOX",
    "PHI",
    "PHI3",
    "STARCODER2",
    "HfNames",
]

_QKV = ("attention.q", "attention.k", "attention.v")


@dataclass(frozen=True, slots=True)
class HfNames:
    """``model``: names of the parts outside of layers; ``layer`` the prefix of one, with ``{i}``; ``parts``
    the names within a layer, by canonical name; ``expert`` those of one expert, with ``{e}``. What a table
    does not have is called as in the llama family. ``transposed``: matrices of layers are stored [in, out].
    ``latent``: the matrix of keys and values of a latent.
    """

    model: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layer: str = "model.layers.{i}."
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expert: Mapping[str, str] = field(default_factory=dict)
    merged: tuple[Merged, ...] = ()
    transposed: bool = False
    latent: str = ""

    def names(self, prefix: str = "") -> Names:
        """For ``resolve``; ``prefix`` stands before every name, as in models that hold this one as a part."""

        def direct(info: TensorInfo) -> tuple[str, ...]:
            stem, _, kind = info.name.rpartition(".")
            if not info.name.startswith("layers."):
                found = self.model.get(stem)
                return (
                    tuple(f"{prefix}{name}.{kind}" for name in found) if found else _prefixed(prefix, info.hf)
                )
            _, i, part = stem.split(".", 2)
            found = self.parts.get(part)
            if found is None:
                return _prefixed(prefix, info.hf)
            layer = self.layer.replace("{i}", i)
            return tuple(f"{prefix}{layer}{name}.{kind}" for name in found)

        def experts(info: TensorInfo) -> str | None:
            if info.role != "experts":
                return None
            _, i, part, kind = info.name.replace(".mlp.experts.", ".").split(".")
            name = self.expert.get(part, f"mlp.experts.{{e}}.{part}_proj")
            return f"{prefix}{self.layer.replace('{i}', i)}{name}.{kind}"

        def transposed(info: TensorInfo) -> bool:
            return self.transposed and info.role == "linear"

        return Names(direct, self.merged, prefix + self.layer, experts, transposed, self.latent)


def _prefixed(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


LLAMA = HfNames()
MIXTRAL = HfNames(
    parts={"mlp.router": ("block_sparse_moe.gate", "mlp.gate")},
    expert={
        "gate": "block_sparse_moe.experts.{e}.w1",
        "up": "block_sparse_moe.experts.{e}.w3",
        "down": "block_sparse_moe.experts.{e}.w2",
    },
)
PHI3 = HfNames(
    merged=(
        Merged(_QKV, "self_attn.qkv_proj"),
        Merged(("mlp.gate", "mlp.up"), "mlp.gate_up_proj"),
    )
)
DEEPSEEK = HfNames(
    parts={f"mlp.shared.{x}": (f"mlp.shared_experts.{x}_proj",) for x in ("gate", "up", "down")},
    latent="self_attn.kv_b_proj",
)
BAICHUAN = HfNames(merged=(Merged(_QKV, "self_attn.W_pack"),))
GLM = HfNames(merged=(Merged(("mlp.gate", "mlp.up"), "mlp.gate_up_proj"),))
GLM4 = HfNames(
    parts={
        "post_attention_norm": ("post_self_attn_layernorm",),
        "pre_mlp_norm": ("post_attention_layernorm",),
        "post_mlp_norm": ("post_mlp_layernorm",),
    },
    merged=GLM.merged,
)
STARCODER2 = HfNames(parts={"mlp.up": ("mlp.c_fc",), "mlp.down": ("mlp.c_proj",)})
PHI = HfNames(
    model={"final_norm": ("model.final_layernorm",)},
    parts={"attention.o": ("self_attn.dense",), "mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",)},
)
GPT2 = HfNames(
    model={
        "embedding": ("transformer.wte", "wte"),
        "positions": ("transformer.wpe", "wpe"),
        "final_norm": ("transformer.ln_f", "ln_f"),
    },
    layer="transformer.h.{i}.",
    parts={
        "pre_attention_norm": ("ln_1",),
        "attention.q": ("attn.q_attn",),
        "attention.k": ("attn.k_attn",),
        "attention.v": ("attn.v_attn",),
        "attention.o": ("attn.c_proj",),
        "pre_mlp_norm": ("ln_2",),
        "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    merged=(Merged(_QKV, "attn.c_attn"),),
    transposed=True,
)
NEOX = HfNames(
    model={
        "embedding": ("gpt_neox.embed_in",),
        "final_norm": ("gpt_neox.final_layer_norm",),
        "head": ("embed_out", "lm_head"),
    },
    layer="gpt_neox.layers.{i}.",
    parts={
        "pre_attention_norm": ("input_layernorm",),
        "attention.q": ("attention.q_proj",),
        "attention.k": ("attention.k_proj",),
        "attention.v": ("attention.v_proj",),
        "attention.o": ("attention.dense",),
        "pre_mlp_norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.dense_h_to_4h",),
        "mlp.down": ("mlp.dense_4h_to_h",),
    },
    merged=(Merged(_QKV, "attention.query_key_value", "groups"),),
)
FALCON = HfNames(
    model={
        "embedding": ("transformer.word_embeddings",),
        "final_norm": ("transformer.ln_f",),
    },
    layer="transformer.h.{i}.",
    parts={
        "pre_attention_norm": ("ln_attn", "input_layernorm"),
        "attention.q": ("self_attention.q_proj",),
        "attention.k": ("self_attention.k_proj",),
        "attention.v": ("self_attention.v_proj",),
        "attention.o": ("self_attention.dense",),
        "pre_mlp_norm": ("ln_mlp", "post_attention_layernorm"),
        "mlp.up": ("mlp.dense_h_to_4h",),
        "mlp.down": ("mlp.dense_4h_to_h",),
    },
    merged=(Merged(_QKV, "self_attention.query_key_value", "groups"),),
)
INTERNLM2 = HfNames(
    model={"embedding": ("model.tok_embeddings",), "head": ("output",)},
    parts={
        "pre_attention_norm": ("attention_norm",),
        "attention.q": ("attention.wq",),
        "attention.k": ("attention.wk",),
        "attention.v": ("attention.wv",),
        "attention.o": ("attention.wo",),
        "pre_mlp_norm": ("ffn_norm",),
        "mlp.gate": ("feed_forward.w1",),
        "mlp.up": ("feed_forward.w3",),
        "mlp.down": ("feed_forward.w2",),
    },
    merged=(Merged(_QKV, "attention.wqkv", "groups"),),
)
