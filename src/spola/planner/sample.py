"""A sample of a model: its shapes and types with random weights, in as many layers as fit into some memory.

Made from a header alone. The speed of the kernels does not depend on the values of weights, but on shapes, on
types, and on whether they come from memory or from a cache: so a sample is as large as it may be. Every kind
of layer is in it, and the last layer, most rows of which end with their K and V.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spola.core.dtype import BY_NAME, DType, nbytes
from spola.core.runner import Tensor
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import in_load_order, manifest

__all__ = ["Sample", "sample_tensors", "take_sample"]

_POOL = 4099  # blocks of random weights, over and over: a prime, so that rows differ
_LEAST_VOCAB = 1024
# Where the scales of a block are, by their highest byte, and what that is to be: scales of about 2**-11.
_SCALES: dict[str, tuple[tuple[int, ...], int]] = {
    "Q4_0": ((1,), 0x10),
    "Q4_1": ((1, 3), 0x10),
    "Q5_0": ((1,), 0x10),
    "Q5_1": ((1, 3), 0x10),
    "Q8_0": ((1,), 0x10),
    "Q2_K": ((81, 83), 0x10),
    "Q3_K": ((109,), 0x10),
    "Q4_K": ((1, 3), 0x10),
    "Q5_K": ((1, 3), 0x10),
    "Q6_K": ((209,), 0x10),
    "IQ4_NL": ((1,), 0x10),
    "IQ4_XS": ((1,), 0x10),
    "MXFP4": ((0,), 0x74),
    "F8_E4M3": ((3,), 0x3C),
}
_NO_NAN = bytes(byte & 0xBF for byte in range(256))  # an 8-bit float whose exponent is not full


@dataclass(frozen=True, slots=True)
class Sample:
    """``chosen``: indices of the model's layers, ascending, the last among them. ``kinds``: for each layer of
    the model a number, equal for equal layers. ``vocab`` is the model's; that of ``spec`` may be smaller.
    """

    spec: DecoderSpec
    dtypes: Mapping[str, str]
    chosen: tuple[int, ...]
    kinds: tuple[int, ...]
    vocab: int

    def whole(self, seconds: Sequence[float]) -> float:
        """Seconds of all layers of the model, from those of the sample's layers."""
        before = self.chosen[:-1]
        total = seconds[-1]
        for kind in set(self.kinds[:-1]):
            alike = [seconds[i] for i, layer in enumerate(before) if self.kinds[layer] == kind]
            total += self.kinds[:-1].count(kind) * (sum(alike) / len(alike) if alike else seconds[-1])
        return total


def take_sample(spec: DecoderSpec, dtypes: Mapping[str, str], size: int) -> Sample:
    """About ``size`` bytes of the model, or more where one layer of each kind takes more. The table of tokens
    is cut where it would take more than a quarter.
    """
    ends = [info for info in manifest(spec) if info.role in ("embedding", "head") and info.name in dtypes]
    row = sum(nbytes(BY_NAME[dtypes[info.name]], info.shape[-1]) for info in ends)
    vocab = min(spec.vocab, max(_LEAST_VOCAB, size // 4 // max(row, 1)))
    kinds = _kinds(spec, dtypes)
    held = [0] * len(spec.layers)
    for info in manifest(spec):
        layer = _layer_of(info.name)
        if layer is not None and info.name in dtypes:
            held[layer] += nbytes(BY_NAME[dtypes[info.name]], math.prod(info.shape))
    chosen = _choose(kinds, min(1.0, max(0, size - vocab * row) / max(1, sum(held))))
    part = replace(spec, vocab=vocab, layers=tuple(spec.layers[i] for i in chosen))
    names = {info.name: _renamed(info.name, chosen) for info in manifest(part)}
    return Sample(
        part,
        {name: dtypes[there] for name, there in names.items() if there in dtypes},
        chosen,
        kinds,
        spec.vocab,
    )


def sample_tensors(sample: Sample, seed: int = 0) -> Iterator[Tensor]:
    """Its tensors in the order of a load: random matrices, norms that change nothing."""
    rng = random.Random(seed)
    pools: dict[str, bytes] = {}
    for info in in_load_order(sample.spec):
        kind = sample.dtypes.get(info.name)
        if kind is None:
            continue
        dtype, count = BY_NAME[kind], math.prod(info.shape)
        if len(info.shape) == 1 and info.role in ("norm", "rope"):
            yield Tensor(info.name, kind, info.shape, _float(kind, 1.0) * count)
            continue
        if len(info.shape) == 1 or info.role == "expert_bias":
            yield Tensor(info.name, kind, info.shape, bytes(nbytes(dtype, count)))
            continue
        pool = pools.get(kind) or pools.setdefault(kind, _random_blocks(dtype, rng))
        size = nbytes(dtype, count)
        at = rng.randrange(_POOL) * dtype.block_bytes
        data = (pool * (size // len(pool) + 2))[at : at + size]
        yield Tensor(info.name, kind, info.shape, data)


def _random_blocks(dtype: DType, rng: random.Random) -> bytes:
    if dtype.block == 1:
        return b"".join(_float(dtype.name, rng.gauss(0.0, 0.02)) for _ in range(_POOL))
    data = bytearray(rng.randbytes(_POOL * dtype.block_bytes))
    if dtype.name == "F8_E4M3":
        data = bytearray(data.translate(_NO_NAN))
    places, byte = _SCALES[dtype.name]
    for place in places:
        data[place :: dtype.block_bytes] = bytes([byte]) * _POOL
    return bytes(data)


def _float(kind: str, x: float) -> bytes:
    if kind == "F16":
        return struct.pack("<e", x)
    return struct.pack("<f", x)[2:] if kind == "BF16" else struct.pack("<f", x)


def _layer_of(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "layers" else None


def _renamed(name: str, chosen: Sequence[int]) -> str:
    """The model's name of a tensor of the sample."""
    layer = _layer_of(name)
    if layer is None:
        return name
    return ".".join(["layers", str(chosen[layer]), *name.split(".")[2:]])


def _kinds(spec: DecoderSpec, dtypes: Mapping[str, str]) -> tuple[int, ...]:
    types: list[dict[str, str]] = [{} for _ in spec.layers]
    for name, dtype in dtypes.items():
        layer = _layer_of(name)
        if layer is not None:
            types[layer][name.split(".", 2)[2]] = dtype
    seen: list[tuple[object, dict[str, str]]] = []
    out = []
    for layer_spec, own in zip(spec.layers, types, strict=True):
        if (layer_spec, own) not in seen:
            seen.append((layer_spec, own))
        out.append(seen.index((layer_spec, own)))
    return tuple(out)


def _choose(kinds: Sequence[int], share: float) -> tuple[int, ...]:
    """That share of the layers of each kind, spread evenly; of each one at least, and the last layer."""
    last = len(kinds) - 1
    chosen = {last}
    for kind in set(kinds[:-1]):
        alike = [i for i, other in enumerate(kinds[:-1]) if other == kind]
        n = max(1, int(share * len(alike)))
        chosen.update(alike[i * len(alike) // n] for i in range(n))
    return tuple(sorted(chosen))
