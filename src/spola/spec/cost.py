"""What a model costs: bytes held, bytes streamed, floating-point operations.

Pure arithmetic over a spec, the storage type of each tensor and KvGroups; every formula is in the docstring
of its function. Measures nothing and reads no machine; what fits into one is ``runtime.fit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spola.core.dtype import BY_NAME, nbytes
from spola.core.runner import KvGroup
from spola.spec.decoder import DecoderSpec, MoeMlp, Rope, absorbed
from spola.spec.manifest import TensorInfo, manifest

__all__ = [
    "attention_flops",
    "decode_bytes",
    "decode_flops",
    "ends_with_kv",
    "kv_bytes_per_token",
    "kv_read_bytes",
    "matmul_parameters",
    "position_bytes",
    "prefill_flops",
    "streamed_weight_bytes",
    "tail_parameters",
    "weight_bytes",
]

_AFTER_KV = ("attention.o.", "attention.v_b.")  # of attention's tensors: what works on its results


def weight_bytes(spec: DecoderSpec, dtypes: Mapping[str, str]) -> int:
    """Bytes of all tensors as stored; ``dtypes`` maps canonical names to DType names.

    Tensors that may be left out and are not in ``dtypes`` count nothing. A tied head is one copy.
    """
    return sum(_bytes(info, dtypes) for info in manifest(spec))


def streamed_weight_bytes(spec: DecoderSpec, dtypes: Mapping[str, str], rows: int = 1) -> int:
    """Bytes of weights that one step of ``rows`` rows reads, when logits are wanted.

    Everything once, but of an untied embedding only the rows looked up, and of experts at most as many as
    the rows can choose.
    """
    total = 0
    for info in manifest(spec):
        size = _bytes(info, dtypes)
        if info.role == "experts":
            size = size // info.shape[0] * min(rows * _used(spec, info), info.shape[0])
        if info.role == "embedding" and not spec.head.tied:
            size = size // info.shape[0] * min(rows, info.shape[0])
        total += size
    return total


def position_bytes(spec: DecoderSpec) -> int:
    """Bytes of cosines and sines of one position: dim f32 for each rope that differs from the others."""
    ropes = {layer.attention.positions for layer in spec.layers}
    return sum(4 * rope.dim for rope in ropes if isinstance(rope, Rope))


def kv_bytes_per_token(groups: Iterable[KvGroup]) -> int:
    """Bytes of K and V of one more token: 2 * layers * kv heads * head dim * bytes in a plain model."""
    return sum(group.bytes_per_token for group in groups)


def kv_read_bytes(groups: Iterable[KvGroup], context: int) -> int:
    """Bytes of K and V that a token at position ``context - 1`` reads; a window reads its width at most."""
    return sum(
        g.bytes_per_token * (min(context, g.window) if g.kind == "window" else context) for g in groups
    )


def decode_bytes(
    spec: DecoderSpec, dtypes: Mapping[str, str], groups: Sequence[KvGroup], contexts: Sequence[int]
) -> int:
    """Bytes that a decode step moves: all weights once, and the KV of every sequence.

    ``contexts`` holds, per sequence, the number of positions it attends to.
    """
    weights = streamed_weight_bytes(spec, dtypes, len(contexts))
    return weights + sum(kv_read_bytes(groups, context) for context in contexts)


def matmul_parameters(spec: DecoderSpec) -> int:
    """Parameters of the linear layers that a row goes through, without embedding and head; of experts those
    chosen. Twice this are the FLOPs of a row that gets logits.
    """
    return sum(_used_size(spec, info) for info in manifest(spec))


def ends_with_kv(spec: DecoderSpec, name: str) -> bool:
    """Whether rows without logits never come to the tensor ``name``: it is behind the K and V of the last
    layer, which are all that later tokens need of them.
    """
    prefix = f"layers.{len(spec.layers) - 1}."
    part = name.removeprefix(prefix)
    return part != name and (not part.startswith("attention.") or part.startswith(_AFTER_KV))


def tail_parameters(spec: DecoderSpec) -> int:
    """The part of ``matmul_parameters`` that only rows with logits go through."""
    return sum(_used_size(spec, info) for info in manifest(spec) if ends_with_kv(spec, info.name))


def prefill_flops(spec: DecoderSpec, tokens: int, start: int = 0, head_rows: int = 1) -> int:
    """Floating-point operations (a multiply and an add are two) of ``tokens`` rows from position ``start``.

    2 * parameters * tokens for linear layers, 2 * hidden * vocab for each row with logits, and per layer
    2 * heads * (k_dim + v_dim) for each pair of a row and a position that it sees, in the latent space where
    there is one. The last ``head_rows`` rows have logits; of the last layer the others need K and V only.
    """
    tail = tail_parameters(spec)
    linear = 2 * (matmul_parameters(spec) - tail) * tokens + 2 * (tail + spec.hidden * spec.vocab) * head_rows
    return linear + attention_flops(spec, tokens, start, head_rows)


def attention_flops(spec: DecoderSpec, tokens: int, start: int = 0, head_rows: int | None = None) -> int:
    """The part of ``prefill_flops`` that is attention's; without ``head_rows`` all rows have logits."""
    heads = tokens if head_rows is None else min(head_rows, tokens)
    total = 0
    for index, layer in enumerate(spec.layers):
        a = absorbed(layer.attention)
        rows = heads if index == len(spec.layers) - 1 else tokens
        total += 2 * a.heads * (a.k_dim + a.v_dim) * _pairs(start + tokens - rows, rows, a.window)
    return total


def decode_flops(spec: DecoderSpec, contexts: Iterable[int]) -> int:
    """Floating-point operations of one decode step; ``contexts`` as in ``decode_bytes``."""
    return sum(prefill_flops(spec, 1, context - 1) for context in contexts)


def _pairs(start: int, tokens: int, window: int | None) -> int:
    """Sum over positions p of start .. start + tokens - 1 of how many positions p sees."""

    def below(n: int) -> int:  # sum over p < n
        if window is None or n <= window:
            return n * (n + 1) // 2
        return window * (window + 1) // 2 + (n - window) * window

    return below(start + tokens) - below(start)


def _used_size(spec: DecoderSpec, info: TensorInfo) -> int:
    """Parameters of a tensor that a row is multiplied with."""
    if info.role in ("linear", "heads", "router"):
        return _size(info)
    return _size(info) // info.shape[0] * _used(spec, info) if info.role == "experts" else 0


def _used(spec: DecoderSpec, info: TensorInfo) -> int:
    """How many experts of the stack ``info`` a row goes through."""
    mlp = spec.layers[int(info.name.split(".")[1])].mlp
    assert isinstance(mlp, MoeMlp)
    return mlp.used


def _size(info: TensorInfo) -> int:
    size = 1
    for n in info.shape:
        size *= n
    return size


def _bytes(info: TensorInfo, dtypes: Mapping[str, str]) -> int:
    if info.name not in dtypes and not info.required:
        return 0
    return nbytes(BY_NAME[dtypes[info.name]], _size(info))
