"""What ``spola models`` lists: models on this disk and those of the table, with what to expect of them here.

Of a model on disk its header is read; of one that is not here the table's figures are used, so that the
prediction comes before the download. Speeds are bounds: the memory's bandwidth for decoding, the processor's
multiply-adds for a prompt. Both are measured once, in under a second; what cannot be measured is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spola.core.errors import SpolaError
from spola.load.model import open_model
from spola.load.names import KNOWN, Known
from spola.load.resolve import ModelPath, hub_file, models_found
from spola.runtime.bandwidth import read_bandwidth
from spola.runtime.fit import USABLE, WORKSPACE
from spola.runtime.machine import Machine
from spola.spec.cost import kv_bytes_per_token, matmul_parameters, streamed_weight_bytes
from spola.spec.kv import kv_groups

__all__ = ["PROMPT", "Rates", "Row", "measure_rates", "rows"]

PROMPT = 512  # tokens of the prompt whose reading is predicted
_KV_TOKENS = 1024  # of context that must fit beside the weights


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read and 8-bit multiply-adds per second, of all threads; None where not measured."""

    bytes_per_s: float | None
    ops_per_s: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """``name`` can be given as MODEL. Sizes in bytes; ``decode_tok_s`` is at most, ``ttft_s`` at least.
    ``problem``: why a model on disk does not run.
    """

    name: str
    on_disk: bool
    size: int
    parameters: int | None
    fits: bool
    decode_tok_s: float | None
    ttft_s: float | None
    licence: str = ""
    source: str = ""
    problem: str = ""


def measure_rates(machine: Machine) -> Rates:
    """Bandwidth as kept or measured; the peak of 8-bit arithmetic measured."""
    try:
        from spola.backends.native import measure_peak
    except ImportError:
        return Rates(None, None)
    return Rates(read_bandwidth(machine, machine.threads), measure_peak("a8", machine.threads))


def rows(machine: Machine, rates: Rates) -> Iterator[Row]:
    """Models on this disk first, then those of the table that are not."""
    here = models_found()
    for where in here:
        yield _on_disk(where, machine, rates)
    for known in KNOWN:
        if not _is_here(known):
            yield _known(known, machine, rates)


def _on_disk(where: ModelPath, machine: Machine, rates: Rates) -> Row:
    size = _size(where)
    source = str(where.path)
    try:
        with open_model(where) as model:
            spec, dtypes, weights = model.spec, model.dtypes, model.weights_bytes
            kv = kv_bytes_per_token(kv_groups(spec, "f16", "f16"))
            streamed = streamed_weight_bytes(spec, dtypes)
            parameters = matmul_parameters(spec)
    except SpolaError as error:
        return Row(where.name, True, size, None, False, None, None, source=source, problem=str(error))
    fits = _fits(weights, kv, machine)
    decode, ttft = _speed(streamed, parameters, rates)
    return Row(where.name, True, size, parameters, fits, decode, ttft, source=source)


def _known(known: Known, machine: Machine, rates: Rates) -> Row:
    size, parameters = known.file_mb * 10**6, known.parameters * 10**6
    decode, ttft = _speed(size, parameters, rates)
    fits = _fits(size, known.kv_bytes, machine)
    return Row(known.name, False, size, parameters, fits, decode, ttft, known.licence, source=known.full_name)


def _is_here(known: Known) -> bool:
    org, name = known.repository.split("/")
    try:
        return hub_file(org, name, known.tag, known.name) is not None
    except SpolaError:
        return False


def _size(where: ModelPath) -> int:
    """Bytes of the file, of all shards of it, or of a folder's weights."""
    if where.kind == "hf":
        return sum(path.stat().st_size for path in where.path.glob("*.safetensors"))
    stem, shard, _ = where.path.name.partition("-00001-of-")
    parts = where.path.parent.glob(f"{stem}-*-of-*.gguf") if shard else [where.path]
    return sum(path.stat().st_size for path in parts)


def _fits(weights: int, kv: int, machine: Machine) -> bool:
    usable = min(machine.memory_limit, machine.memory_available) * USABLE
    return weights + WORKSPACE + kv * _KV_TOKENS <= usable


def _speed(streamed: int, parameters: int, rates: Rates) -> tuple[float | None, float | None]:
    decode = rates.bytes_per_s / streamed if rates.bytes_per_s else None
    ttft = PROMPT * parameters / rates.ops_per_s if rates.ops_per_s else None
    if decode is not None and ttft is not None:
        ttft = max(ttft, 1 / decode)
    return decode, ttft
