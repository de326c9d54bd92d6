"""The tensors of a model into the native decoder: each is checked against the manifest and packed there.

Reads no file, and does not know what the tensors are for: that is ``lower``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spola import _native
from spola.backends.native.supported import norm_offsets
from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import TensorInfo, manifest

__all__ = ["MATRIX_ROLES", "Tensors", "take"]

# What is packed as matrices; of "experts" and "heads" one for each of a stack.
MATRIX_ROLES = ("embedding", "positions", "linear", "router", "head", "experts", "heads")


@dataclass(frozen=True, slots=True)
class Tensors:
    """Indices of packed matrices and of vectors by canonical name, and the values of rope factors.

    Of a stack of experts the index is the first one's; the others follow.
    """

    matrices: Mapping[str, int]
    vectors: Mapping[str, int]
    factors: Mapping[str, array[float]]


def take(spec: DecoderSpec, tensors: Iterable[Tensor], decoder: _native.Decoder) -> Tensors:
    """Hand every tensor to the decoder. Raises ModelError naming the one that is missing or wrong."""
    wanted = {info.name: info for info in manifest(spec)}
    offsets = norm_offsets(spec)
    matrices: dict[str, int] = {}
    vectors: dict[str, int] = {}
    factors: dict[str, array[float]] = {}
    for tensor in tensors:
        info = wanted.get(tensor.name)
        if info is None:
            continue
        _check_shape(tensor, info)
        dtype = BY_NAME[tensor.dtype]
        if info.role in ("experts", "heads"):
            matrices[tensor.name] = _add_experts(decoder, tensor)
        elif info.role in MATRIX_ROLES:
            rows, columns = tensor.shape
            matrices[tensor.name] = decoder.add_matrix(tensor.name, dtype.gguf_id, rows, columns, tensor.data)
        elif info.role == "expert_bias":
            vectors[tensor.name] = _add_expert_biases(decoder, tensor)
        elif info.role == "rope":
            factors[tensor.name] = _factors(tensor)
        else:
            offset = offsets.get(tensor.name, 0.0)
            vectors[tensor.name] = decoder.add_vector(
                tensor.name, dtype.gguf_id, tensor.shape[0], tensor.data, offset
            )
    for name, info in wanted.items():
        if info.required and not (name in matrices or name in vectors or name in factors):
            raise ModelError(f"tensor {info.gguf} is missing; the file is incomplete or of another kind")
    return Tensors(matrices, vectors, factors)


def _add_experts(decoder: _native.Decoder, tensor: Tensor) -> int:
    """One matrix for each expert of a stack, one after the other; the index of the first."""
    _, rows, columns = tensor.shape
    dtype = BY_NAME[tensor.dtype].gguf_id
    indices = [
        decoder.add_matrix(f"{tensor.name} of expert {e}", dtype, rows, columns, part)
        for e, part in enumerate(_by_expert(tensor))
    ]
    return indices[0]


def _add_expert_biases(decoder: _native.Decoder, tensor: Tensor) -> int:
    """One vector for each expert, one after the other; the index of the first."""
    dtype = BY_NAME[tensor.dtype].gguf_id
    indices = [
        decoder.add_vector(tensor.name, dtype, tensor.shape[1], part, 0.0) for part in _by_expert(tensor)
    ]
    return indices[0]


def _by_expert(tensor: Tensor) -> list[memoryview]:
    """The bytes of each expert of a stack."""
    data = memoryview(tensor.data).cast("B")
    size = len(data) // tensor.shape[0]
    return [data[start : start + size] for start in range(0, size * tensor.shape[0], size)]


def _check_shape(tensor: Tensor, info: TensorInfo) -> None:
    if tuple(tensor.shape) != info.shape:
        raise ModelError(f"tensor {tensor.name} has shape {list(tensor.shape)}, expected {list(info.shape)}")
    if tensor.dtype not in BY_NAME:
        raise ModelError(f"tensor {tensor.name}: type {tensor.dtype} is not supported")


def _factors(tensor: Tensor) -> array[float]:
    """Rope divisors: F32, positive."""
    if tensor.dtype != "F32":
        raise ModelError(f"tensor {tensor.name}: rope factors must be F32, not {tensor.dtype}")
    values = array("f")
    values.frombytes(bytes(tensor.data))
    if not all(0.0 < value < float("inf") for value in values):
        raise ModelError(f"tensor {tensor.name} holds a rope factor that is not a positive number")
    return values
