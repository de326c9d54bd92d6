"""What the native decoder takes for a model, to the byte, without making one: weights, workspace, KV cache.

Follows the same lowering as a load (``lower``) and counts what the decoder would allocate; the layouts are
those of native/src/base/arena.cc and native/src/decoder/workspace.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from spola import _native
from spola.backends.native.lower import lower
from spola.backends.native.tensors import MATRIX_ROLES, Tensors
from spola.core.dtype import BY_NAME, nbytes
from spola.core.runner import BLOCK_TOKENS, SEGMENT_TOKENS, KvGroup, RunnerConfig, kv_row_bytes
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import TensorInfo, in_load_order, manifest

__all__ = ["footprint", "loading_bytes", "packed_bytes", "packed_matrix_bytes"]

_LINE = 64  # bytes: kCacheLine
_TILE_ROWS, _QUERY_ROWS, _HEAD_ROWS, _OWN_ROWS, _SPARE_RECORDS = 16, 32, 64, 2, 1024
_GROUPED_BLOCK = 32 + 6 * 4  # bytes: kRowBlockBytes
_RESIDUAL, _QKV, _ATTENTION, _HIDDEN, _BRANCH, _DELTA, _LOGITS, _EXPERT, _BUFFERS = 0, 1, 2, 3, 4, 5, 6, 8, 10
_SEGMENT_BLOCKS = SEGMENT_TOKENS // BLOCK_TOKENS


def footprint(spec: DecoderSpec, dtypes: Mapping[str, str], config: RunnerConfig) -> dict[str, int]:
    """Bytes by what for, as ``NativeRunner.memory`` tells them after a load; ``dtypes`` by canonical name.

    "positions" is the part of the weights that grows with ``config.max_model_len``.
    """
    sizes = _Sizes(spec, config)
    tensors = sizes.take(dtypes)
    lower(spec, config, cast(_native.Decoder, sizes), tensors)
    blocks = zip(config.kv_groups, config.kv_blocks, strict=True)
    return {
        "weights": sizes.used,
        "kv": sum(count * group.bytes_per_block for group, count in blocks),
        "workspace": sizes.workspace(),
        "positions": sizes.positions,
    }


def loading_bytes(spec: DecoderSpec, dtypes: Mapping[str, str], precise: bool) -> int:
    """The most bytes of weights at a time while they are loaded: a tensor as it is stored, beside the one
    before it, which the taker still holds, or beside what it is packed into, and all that came before.
    """
    most = packed = before = 0
    for info in in_load_order(spec):
        dtype = dtypes.get(info.name)
        if dtype is not None:
            stored = nbytes(BY_NAME[dtype], math.prod(info.shape))
            most = max(most, packed + before + stored)
            packed += packed_bytes(info, dtype, precise)
            most = max(most, packed + stored)
            before = stored
    return most


def packed_bytes(info: TensorInfo, dtype: str, precise: bool) -> int:
    """Bytes of a tensor once it is packed."""
    if info.role in MATRIX_ROLES:
        return packed_matrix_bytes(info, dtype, precise)
    return 4 * math.prod(info.shape)


def packed_matrix_bytes(info: TensorInfo, dtype: str, precise: bool) -> int:
    """Bytes of a matrix, or of a stack of them, once it is packed."""
    *stack, rows, columns = info.shape
    return math.prod(stack) * _native.packed_bytes(BY_NAME[dtype].gguf_id, rows, columns, precise)


class _Sizes:
    """Takes the calls that build a decoder, and adds up."""

    def __init__(self, spec: DecoderSpec, config: RunnerConfig) -> None:
        self.spec, self.config = spec, config
        self.used = self.positions = 0
        self._count = self._site_count = 0
        self._widths = [0] * _BUFFERS
        self._widths[_RESIDUAL] = spec.hidden
        self._widths[_LOGITS] = _up(spec.vocab, _TILE_ROWS)
        self._widest = spec.hidden  # of activations
        self._record = self._scratch = 0
        self._slots = 1
        self._heads = self._head_width = 0

    def take(self, dtypes: Mapping[str, str]) -> Tensors:
        """Allocate every tensor that ``dtypes`` names."""
        matrices: dict[str, int] = {}
        vectors: dict[str, int] = {}
        factors: dict[str, Any] = {}
        for info in manifest(self.spec):
            dtype = dtypes.get(info.name)
            if dtype is None:
                continue
            if info.role == "rope":
                factors[info.name] = [1.0] * info.shape[0]
            elif info.role == "expert_bias":
                vectors[info.name] = self._each(info.shape[0], 4 * info.shape[1])
            elif info.role in MATRIX_ROLES:
                experts = info.shape[0] if info.role in ("experts", "heads") else 1
                size = packed_matrix_bytes(info, dtype, self.config.precise)
                matrices[info.name] = self._each(experts, size // experts)
            else:
                vectors[info.name] = self._each(1, 4 * info.shape[0])
        return Tensors(matrices, vectors, factors)

    def _each(self, count: int, size: int) -> int:
        """``count`` allocations of ``size`` bytes; the index of the first."""
        first = self._count
        for _ in range(count):
            self.used = _up(self.used, _LINE) + size
        self._count += count
        return first

    # What ``lower`` calls on a decoder: names and arguments are those of _native.Decoder.

    def add_vector(self, name: str, type: int, n: int, data: Any, offset: float) -> int:
        return self._each(1, 4 * n)

    def add_rope(self, frequencies: Sequence[float], factor: float, interleaved: bool) -> int:
        size = 4 * self.config.max_model_len * len(frequencies)
        self.positions += 2 * size
        return self._each(2, size)

    def add_site(self, *shape: int) -> int:
        self._site_count += 1
        return self._site_count - 1

    def adapt(self, sites: Sequence[int], max_rank: int) -> None:
        self._widen(_DELTA, len(sites) * max_rank)

    def embed(self, *arguments: Any) -> None:
        pass

    def residual(self, *arguments: Any) -> None:
        pass

    def head(self, *arguments: Any) -> None:
        pass

    def prepare(self, input: int, width: int, *rest: Any) -> None:
        self._widest = max(self._widest, width)

    def linear(self, parts: Sequence[Any], output: int, width: int, *rest: Any) -> None:
        self._widen(output, width)

    def route(
        self,
        experts: int,
        used: int,
        width: int,
        normalise: bool,
        scale: float,
        sigmoid: bool,
        bias: int,
        groups: int,
        groups_used: int,
    ) -> None:
        self._slots = max(self._slots, used)
        self._scratch = max(self._scratch, 2 * (experts + groups))

    def prepare_part(self, *, width: int, heads: int, **rest: Any) -> None:
        if not heads:
            self._widest = max(self._widest, width)
        self._heads = max(self._heads, heads)
        self._head_width = max(self._head_width, width if heads else 0)

    def heads(self, *, output: int, width: int, **rest: Any) -> None:
        self._widen(output, width)

    def latent(self, *, group: int, heads: int, **rest: Any) -> None:
        kv = self.config.kv_groups[group]
        self.attention(group=group, heads=heads)
        values = _SEGMENT_BLOCKS * kv_row_bytes(kv.k_dtype, kv.v_dim) * BLOCK_TOKENS // 4
        self._scratch = max(self._scratch, _QUERY_ROWS * heads * (kv.v_dim + 2) + values, 2 * kv.k_dim)

    def experts(self, *, output: int, width: int, **rest: Any) -> None:
        self._widen(output, width)
        self._widest = max(self._widest, width)

    def combine(self, width: int, *rest: Any) -> None:
        self._widen(_BRANCH, width)

    def attention(self, *, group: int, heads: int, **rest: Any) -> None:
        kv: KvGroup = self.config.kv_groups[group]
        self._widen(_ATTENTION, heads * kv.v_dim)
        self._record = max(self._record, heads * (kv.v_dim + 2))
        self._scratch = max(self._scratch, _QUERY_ROWS * (heads // kv.heads) * (kv.v_dim + 2))

    def _widen(self, buffer: int, width: int) -> None:
        if buffer >= 0:
            self._widths[buffer] = max(self._widths[buffer], width)

    def workspace(self) -> int:
        """Bytes of the buffers that a step computes in, once all layers were lowered."""
        rows = self.config.max_step_tokens
        head_rows = min(_HEAD_ROWS, rows)
        total = 0

        def take(count: int, size: int) -> None:
            nonlocal total
            total = _up(total, _LINE) + count * size

        for buffer, width in enumerate(self._widths):
            n = rows
            if buffer == _LOGITS:
                n = head_rows
            elif buffer in (_HIDDEN, _EXPERT):
                n = rows * self._slots
            take(n * width, 4)
        take(head_rows * self.spec.hidden, 4)
        take((rows + _SPARE_RECORDS) * self._record, 4)
        scratch = max(self._scratch, self._widths[_QKV], self.spec.hidden)
        take(_up(scratch, _LINE) * self.config.threads, 4)
        _activations((rows * self._slots, self._widest), (rows * self._heads, self._head_width), take)
        take(rows * (self._widest // 32), _GROUPED_BLOCK)
        for _ in range(self.config.threads):
            _activations((_OWN_ROWS, self._widest), (0, 0), take)
            take(_OWN_ROWS * self._widths[_ATTENTION], 4)
        return total


def _activations(a: tuple[int, int], b: tuple[int, int], take: Callable[[int, int], None]) -> None:
    """Activations in every format: int8 with a scale, a sum and half sums, int16 with a scale, f32.

    Of so many rows of such a width, in whichever of the two ways takes more.
    """

    def most(per: int) -> int:
        return max(rows * -(-width // per) for rows, width in (a, b))

    take(most(1), 1)
    take(most(32), 4)
    take(most(32), 4)
    take(most(16), 2)
    take(most(1), 2)
    take(max(a[0], b[0]), 4)
    take(most(1), 4)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
