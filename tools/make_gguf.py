"""Write a GGUF file of a real model's shape with random weights, for measuring speed and memory.

Neither depends on the values of weights, so such a file stands in for a checkpoint that is not at hand. The
tokenizer is copied from a real GGUF file; the text that comes out means nothing. Weights are cut from a pool
of random blocks, scaled so that activations stay near one.

    python tools/make_gguf.py --shape llama-1b --type Q4_0 --tokenizer-from SmolLM2-135M.gguf out.gguf
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from spola.core.dtype import BY_NAME, DType
from spola.core.errors import SpolaError
from spola.formats.gguf import open_gguf
from spola.formats.gguf_write import NewTensor, write_gguf

POOL_BLOCKS = 4096
CHUNK = 1 << 22  # bytes written at a time


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rope_base: float


SHAPES = {
    "tiny": Shape(2, 256, 512, 4, 2, 64, 2048, 1e4),
    "smol-135m": Shape(30, 576, 1536, 9, 3, 64, 8192, 1e5),
    "qwen2-0.5b": Shape(24, 896, 4864, 14, 2, 64, 32768, 1e6),
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 64, 131072, 5e5),
    "llama-3b": Shape(28, 3072, 8192, 24, 8, 128, 131072, 5e5),
    "llama2-7b": Shape(32, 4096, 11008, 32, 32, 128, 4096, 1e4),
    "llama3-8b": Shape(32, 4096, 14336, 32, 8, 128, 8192, 5e5),
}


def half(x: float) -> bytes:
    return struct.pack("<e", x)


def float_block(name: str, std: float, rng: random.Random) -> bytes:
    x = rng.gauss(0.0, std)
    if name == "F32":
        return struct.pack("<f", x)
    return half(x) if name == "F16" else struct.pack("<f", x)[2:]


def six_bit_block(d: float, m: float, codes: int, rng: random.Random) -> bytes:
    """Q4_K and Q5_K: all eight scales and mins are 32, whose low 4 and high 2 bits lie apart."""
    scales = bytes([32 | 128] * 8 + [0] * 4)
    return half(d / 32) + half(m / 32) + scales + rng.randbytes(codes)


# Bytes of one block whose weights have the standard deviation `std`: uniform codes of b bits deviate by about
# 2^b / 3.46, and a min moves their mean to zero.
BLOCKS: dict[str, Callable[[float, random.Random], bytes]] = {
    "F32": partial(float_block, "F32"),
    "F16": partial(float_block, "F16"),
    "BF16": partial(float_block, "BF16"),
    "Q4_0": lambda std, rng: half(std / 4.6) + rng.randbytes(16),
    "Q4_1": lambda std, rng: half(std / 4.6) + half(-7.5 * std / 4.6) + rng.randbytes(16),
    "Q5_0": lambda std, rng: half(std / 9.2) + rng.randbytes(20),
    "Q5_1": lambda std, rng: half(std / 9.2) + half(-15.5 * std / 9.2) + rng.randbytes(20),
    "Q8_0": lambda std, rng: half(std / 74) + rng.randbytes(32),
    "Q4_K": lambda std, rng: six_bit_block(std / 4.6, 7.5 * std / 4.6, 128, rng),
    "Q5_K": lambda std, rng: six_bit_block(std / 9.2, 15.5 * std / 9.2, 160, rng),
    "Q6_K": lambda std, rng: rng.randbytes(192) + bytes([16] * 16) + half(std / 18.5 / 16),
}


def random_blocks(dtype: DType, std: float, count: int, rng: random.Random) -> Iterator[bytes]:
    """``count`` blocks in parts: stretches of a pool, each from a random place."""
    pool = b"".join(BLOCKS[dtype.name](std, rng) for _ in range(POOL_BLOCKS))
    pool += pool
    per_part = CHUNK // len(pool) + 1
    while count > 0:
        parts = []
        for _ in range(per_part):
            n = min(POOL_BLOCKS, count)
            at = rng.randrange(POOL_BLOCKS) * dtype.block_bytes
            parts.append(pool[at : at + n * dtype.block_bytes])
            count -= n
        yield b"".join(parts)


def matrix(name: str, kind: str, rows: int, columns: int, seed: int) -> NewTensor:
    dtype = BY_NAME[kind]
    if columns % dtype.block:
        raise SystemExit(f"make_gguf: {kind} needs rows of a multiple of {dtype.block} values, not {columns}")
    rng = random.Random(f"{seed} {name}")
    count = rows * columns // dtype.block
    return NewTensor(name, dtype, (rows, columns), lambda: random_blocks(dtype, columns**-0.5, count, rng))


def ones(name: str, n: int) -> NewTensor:
    return NewTensor(name, BY_NAME["F32"], (n,), struct.pack("<f", 1.0) * n)


def tensors(shape: Shape, kind: str, vocab: int, seed: int) -> list[NewTensor]:
    """Q4_K_M: half of the layers have attn_v and ffn_down in Q6_K, as the table of embeddings is."""
    mixed = kind == "Q4_K_M"
    base, better = ("Q4_K", "Q6_K") if mixed else (kind, kind)
    table = "Q8_0" if shape.hidden % BY_NAME[better].block else better
    d, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    out = [matrix("token_embd.weight", table, vocab, d, seed)]
    for i in range(shape.layers):
        p, big = f"blk.{i}.", better if i % 2 == 0 else base
        out += [ones(f"{p}attn_norm.weight", d), ones(f"{p}ffn_norm.weight", d)]
        for name, type_, rows, columns in (
            ("attn_q", base, q, d),
            ("attn_k", base, kv, d),
            ("attn_v", big, kv, d),
            ("attn_output", base, d, q),
            ("ffn_gate", base, shape.ff, d),
            ("ffn_up", base, shape.ff, d),
            ("ffn_down", big, d, shape.ff),
        ):
            out.append(matrix(f"{p}{name}.weight", type_, rows, columns, seed))
    return [*out, ones("output_norm.weight", d)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=[*BLOCKS, "Q4_K_M"], default="Q4_0")
    parser.add_argument("--tokenizer-from", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    try:
        with open_gguf(given.tokenizer_from) as source:
            copied = {key: value for key, value in source.metadata.items() if key.startswith("tokenizer.")}
            types = {key: source.types[key] for key in copied}
    except SpolaError as error:
        print(f"make_gguf: {error}", file=sys.stderr)
        return 1
    vocab = len(copied["tokenizer.ggml.tokens"])
    metadata = {
        "general.architecture": "llama",
        "general.name": f"{given.shape} {given.type}, random",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.ff,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": shape.rope_base,
        "llama.vocab_size": vocab,
        **copied,
    }
    made = tensors(shape, given.type, vocab, given.seed)
    write_gguf(given.out, metadata, made, types=types)
    print(f"{given.out}: {sum(prod(t.shape) for t in made) / 1e6:.1f} M weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
