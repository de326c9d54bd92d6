"""The contract of a backend: what it can do, what it is given, and how a Step runs.

``Capabilities`` and ``KvGroup`` are data that the scheduler and the block pools obey. ``Runner`` is the
protocol that every backend implements and the engine calls. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from spola.core.step import Step, StepOutput

__all__ = [
    "BLOCK_TOKENS",
    "KV_GROUP",
    "KV_TYPES",
    "SEGMENT_TOKENS",
    "Adapter",
    "AdapterPart",
    "Capabilities",
    "DraftHolder",
    "KvGroup",
    "Runner",
    "RunnerConfig",
    "Tensor",
    "kv_row_bytes",
]

BLOCK_TOKENS = 32  # tokens per KV block
SEGMENT_TOKENS = 256  # attention partials end at absolute multiples of this

KV_TYPES = ("f16", "f32", "int8")
KV_GROUP = 32  # dimensions of one token and KV head that share an f16 scale, where K or V is int8


def kv_row_bytes(dtype: str, dim: int) -> int:
    """Bytes of K or V of one token, layer and KV head of ``dim`` dimensions.

    int8 has a byte for each dimension and an f16 scale for each ``KV_GROUP`` of them.
    """
    match dtype:
        case "f16":
            return 2 * dim
        case "f32":
            return 4 * dim
        case "int8":
            return dim + 2 * -(-dim // KV_GROUP)
    raise ValueError(f"no KV type {dtype!r}")


class KvGroup(msgspec.Struct, frozen=True):
    """Layers that share a block table.

    ``kind`` full keeps every position; window keeps the last ``window`` of them; latent stores one
    compressed vector per token (``k_dim``), whose first ``v_dim`` dimensions are V as well. ``k_dtype``
    and ``v_dtype`` are of ``KV_TYPES``.
    """

    layers: tuple[int, ...]
    heads: int  # KV heads
    k_dim: int
    v_dim: int
    kind: Literal["full", "window", "latent"] = "full"
    window: int = 0  # tokens; 0 unless kind is window
    k_dtype: str = "f16"
    v_dtype: str = "f16"

    @property
    def bytes_per_token(self) -> int:
        """K and V bytes of one token over all layers of the group."""
        return len(self.layers) * self.heads * (kv_row_bytes(self.k_dtype, self.k_dim) + self.v_row_bytes)

    @property
    def v_row_bytes(self) -> int:
        """Bytes that V of one token, layer and KV head takes beside K."""
        return 0 if self.kind == "latent" else kv_row_bytes(self.v_dtype, self.v_dim)

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * BLOCK_TOKENS


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can execute; the scheduler never plans anything else.

    A static-shape backend (``batch_buckets`` or ``prefill_chunk`` set) is given slices only of the
    shapes named: decode batches padded by the backend to the next bucket, prefill slices of exactly
    ``prefill_chunk`` tokens starting at a multiple of it, except that the last of a prompt may be
    shorter (the backend pads it).
    """

    device: str
    mixed_batch: bool = True  # prefill and decode rows in one step
    batch_buckets: tuple[int, ...] = ()  # allowed numbers of decode slices; () = any
    prefill_chunk: int | None = None  # exact tokens of a prefill slice; None = any
    max_prefills: int | None = None  # prefill slices in one step; None = any
    max_step_tokens: int | None = None  # rows in one step; None = as configured
    max_total_context: int | None = None  # bound on the sum over slices of start + n
    block_size: int = BLOCK_TOKENS
    dtypes: tuple[str, ...] = ("f32",)  # arithmetic
    kv_dtypes: tuple[str, ...] = KV_TYPES
    weight_formats: tuple[str, ...] = ()  # DType names
    invariant: bool = False  # output bits independent of batch, chunk and threads
    speculation: bool = False
    adapters: bool = False
    tensor_parallel: bool = False
    pipeline_parallel: bool = False

    @property
    def static_shapes(self) -> bool:
        return bool(self.batch_buckets) or self.prefill_chunk is not None


class RunnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Runner is told at load besides the model."""

    kv_groups: tuple[KvGroup, ...]
    kv_blocks: tuple[int, ...]  # blocks to allocate, one count per group
    max_step_tokens: int  # rows in one Step, at most
    max_seqs: int  # live requests, at most
    max_model_len: int  # positions, at most: factors that depend on length are chosen with it
    threads: int = 1
    precise: bool = False  # int16 per-token activations for every quantized weight
    max_lora_rank: int = 0  # of adapters that will be added; 0: none will


class Tensor(msgspec.Struct, frozen=True):
    """One weight on its way into a backend: canonical name, storage type, shape and raw bytes.

    ``shape`` is (rows, columns) or (n,): row-major, innermost last, as in NumPy and torch. ``data`` is a
    read-only buffer valid only until the next tensor is taken from the iterator.
    """

    name: str
    dtype: str  # DType name
    shape: tuple[int, ...]
    data: Any


class AdapterPart(msgspec.Struct, frozen=True):
    """What an adapter adds to one matrix: ``a`` f32 [rank, columns] and ``b`` f32 [rows, rank], as bytes."""

    a: bytes
    b: bytes


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter: y = W x + b (scale * (a x)) for the matrices of ``parts``, by canonical tensor name."""

    name: str
    rank: int
    scale: float
    parts: dict[str, AdapterPart]

    @property
    def nbytes(self) -> int:
        return sum(len(part.a) + len(part.b) for part in self.parts.values())


@runtime_checkable
class Runner(Protocol):
    """Executes Steps. One per backend; found by name through the entry points ``spola.backends``.

    Not thread-safe: one thread calls it. ``load`` is called once, with a ``spec.DecoderSpec`` and the
    tensors in manifest order, and keeps no reference to the tensors' buffers.
    """

    capabilities: Capabilities

    def load(self, spec: Any, tensors: Iterable[Tensor], config: RunnerConfig) -> None:
        """Take the model in. Raises ModelError naming the tensor, CapacityError with the numbers."""

    def execute(self, step: Step) -> StepOutput:
        """Run one Step. An error of one request is in its SliceOutput, never raised."""

    def add_adapter(self, adapter: Adapter) -> None:
        """Take in what requests may name from the next step on; capability ``adapters``.

        Its rank is at most ``RunnerConfig.max_lora_rank``. Raises ModelError for factors that do not fit.
        """

    def drop_adapter(self, name: str) -> None:
        """Free an adapter that no live request has; ValueError otherwise. An unknown name is ignored."""

    def memory(self) -> dict[str, int]:
        """Bytes held, by what for: at least ``weights``, ``kv`` and ``workspace``."""

    def close(self) -> None:
        """Free everything; further calls are errors. Idempotent."""


@runtime_checkable
class DraftHolder(Protocol):
    """A Runner that can draw drafts and verify them in rejection mode.

    What a draft was drawn from stays in the backend's memory, under a handle. A sampling slice without
    drafts that names one (``Slice.proposals``) draws its token as a draft and adds the distribution to what
    is held; ``adopt`` moves it to the runner that verifies.
    """

    def hold(self, handle: int, weights: bytes) -> None:
        """Keep f32[drafts, V] weights, no sum needed, for the step whose slice has ``proposals == handle``.

        They are gone after that step. ``handle`` is at least 1; another call for it replaces what is held.
        Raises StepError (a ValueError) for what is no distribution.
        """

    def adopt(self, handle: int, source: Any) -> None:
        """As ``hold``, of what ``source``, a loaded runner of the same kind, holds under ``handle``.

        ``source`` holds it no longer. Ids that only one of the two models has count as never drawn. Raises
        StepError when nothing is held there.
        """

    def drop(self, handle: int) -> None:
        """Forget what is held under ``handle``, if anything is."""
