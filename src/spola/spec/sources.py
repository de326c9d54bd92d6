"""Sources: from which rows of which tensors of a file each tensor of the manifest is made.

Files merge what the manifest keeps apart (q, k and v; gate and up), keep apart what it stacks (experts) or
store a matrix transposed. A source says so as plain numbers; the loader copies rows. No bytes are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from spola.core.errors import ModelError
from spola.spec.decoder import DecoderSpec, LatentAttention
from spola.spec.manifest import TensorInfo, manifest

__all__ = ["Merged", "Names", "Piece", "Source", "TensorTable", "resolve", "unused"]

# Tensor name in a file -> (DType name, shape with the innermost dimension last).
TensorTable = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Piece:
    """``runs`` runs of ``rows`` rows each of the tensor ``name`` in a file: the first at row ``start``, their
    starts ``stride`` rows apart.

    A row is all of the innermost dimension; of a one-dimensional tensor it is one element. ``transposed``:
    the file holds [columns, rows], and rows are counted along its last axis; their first value lies in row
    ``below`` of the file's.
    """

    name: str
    start: int
    rows: int
    stride: int
    runs: int = 1
    transposed: bool = False
    below: int = 0


# The pieces, one below the other, are the tensor.
Source = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """One tensor of a file that holds several of a layer, by their names within it.

    ``blocks``: all rows of the first part, then all of the second, and so on. ``groups``: for each KV head
    its rows of q, of k and of v (GPT-NeoX, Falcon).
    """

    parts: tuple[str, ...]
    name: str
    order: Literal["blocks", "groups"] = "blocks"


@dataclass(frozen=True, slots=True)
class Names:
    """How a kind of file calls the tensors of a manifest.

    ``direct``: the names that hold a tensor as it is, best first. ``experts``: the name of one expert's part
    of a stack, with ``{e}`` for its number, or None. ``merged`` are looked at when a part is missing.
    ``transposed``: whether matrices of that canonical name are stored [in, out]. ``latent``: what a layer
    calls the matrix that holds the heads' keys and values of a latent, if it holds them in one.
    """

    direct: Callable[[TensorInfo], Sequence[str]]
    merged: tuple[Merged, ...] = ()
    layer: str = ""  # the prefix of a layer in the file, with {i}
    experts: Callable[[TensorInfo], str | None] = lambda info: None
    transposed: Callable[[TensorInfo], bool] = lambda info: False
    latent: str = ""


def resolve(spec: DecoderSpec, names: Names, tensors: TensorTable) -> dict[str, Source]:
    """The source of every tensor of ``spec``, by canonical name; of what may be absent, when it is there.

    Raises ModelError naming the first tensor of the file that is missing or has another shape.
    """
    infos = {info.name: info for info in manifest(spec)}
    attention = {f"layers.{i}.": layer.attention for i, layer in enumerate(spec.layers)}
    out: dict[str, Source] = {}
    for info in infos.values():
        source = _merged(info, infos, names, tensors, attention) or _direct(info, names, tensors)
        source = source or _stack(info, names, tensors) or _heads(info, names, tensors, attention)
        if source is not None:
            out[info.name] = source
        elif info.required:
            wanted = (*names.direct(info), info.name)[0]
            raise ModelError(f"tensor {wanted} is missing; the file is incomplete or of another kind")
    return out


def unused(
    sources: Mapping[str, Source],
    tensors: Iterable[str],
    harmless: Callable[[str], bool] = lambda name: False,
) -> list[str]:
    """A warning line for each tensor of the file that no source reads, at most eight and a count."""
    known = {piece.name for source in sources.values() for piece in source}
    extra = [name for name in tensors if name not in known and not harmless(name)]
    return [f"tensor {name[:120]} is not used by this model" for name in extra[:8]] + (
        [f"{len(extra) - 8} more tensors are not used by this model"] if len(extra) > 8 else []
    )


def _direct(info: TensorInfo, names: Names, tensors: TensorTable) -> Source | None:
    name = next((n for n in names.direct(info) if n in tensors), None)
    if name is None:
        return None
    transposed = len(info.shape) == 2 and names.transposed(info)
    shape = info.shape[::-1] if transposed else info.shape
    _check(name, tensors, shape)
    rows = _rows(info)
    return (Piece(name, 0, rows, rows, transposed=transposed),)


def _stack(info: TensorInfo, names: Names, tensors: TensorTable) -> Source | None:
    pattern = names.experts(info)
    if pattern is None:
        return None
    pieces = []
    for e in range(info.shape[0]):
        name = pattern.replace("{e}", str(e))
        if name not in tensors:
            raise ModelError(f"tensor {name} is missing; the file is incomplete or of another kind")
        _check(name, tensors, info.shape[1:])
        pieces.append(Piece(name, 0, info.shape[1], info.shape[1]))
    return tuple(pieces)


def _heads(
    info: TensorInfo, names: Names, tensors: TensorTable, attention: Mapping[str, object]
) -> Source | None:
    """``k_b`` or ``v_b`` out of one matrix, which has for each head K_h and then V_h."""
    if info.role != "heads" or not names.latent:
        return None
    _, i, _, part, kind = info.name.split(".")
    a = attention[f"layers.{i}."]
    assert isinstance(a, LatentAttention)
    name, both = f"{names.layer.replace('{i}', i)}{names.latent}.{kind}", a.nope_dim + a.v_dim
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing; the file is incomplete or of another kind")
    _check(name, tensors, (a.heads * both, a.kv_rank))
    if part == "v_b":
        return (Piece(name, a.nope_dim, a.v_dim, both, a.heads),)
    rank = a.kv_rank
    return tuple(Piece(name, 0, rank, rank, transposed=True, below=h * both) for h in range(a.heads))


def _merged(
    info: TensorInfo,
    infos: Mapping[str, TensorInfo],
    names: Names,
    tensors: TensorTable,
    attention: Mapping[str, object],
) -> Source | None:
    for merged in names.merged:
        part = next((p for p in merged.parts if f".{p}." in info.name), None)
        if part is None:
            continue
        prefix, kind = info.name.split(f"{part}.")
        group = [infos[f"{prefix}{p}.{kind}"] for p in merged.parts if f"{prefix}{p}.{kind}" in infos]
        if all(any(n in tensors for n in names.direct(member)) for member in group):
            continue  # the file keeps them apart
        name = f"{names.layer.replace('{i}', prefix.split('.')[1])}{merged.name}.{kind}"
        if name not in tensors:
            continue
        transposed = len(info.shape) == 2 and names.transposed(info)
        rows = [_rows(member) for member in group]
        shape = (sum(rows), *info.shape[1:])
        _check(name, tensors, shape[::-1] if transposed else shape)
        runs = 1 if merged.order == "blocks" else attention[prefix].kv_heads  # type: ignore[attr-defined]
        before = sum(rows[: merged.parts.index(part)]) // runs
        return (Piece(name, before, _rows(info) // runs, sum(rows) // runs, runs, transposed),)
    return None


def _rows(info: TensorInfo) -> int:
    return info.shape[0] if len(info.shape) == 1 else prod(info.shape[:-1])


def _check(name: str, tensors: TensorTable, expected: tuple[int, ...]) -> None:
    shape = tuple(tensors[name][1])
    # A vector may be stored as a matrix of one row, and the other way round.
    if shape != expected and not (
        1 in (*shape[:1], *expected[:1]) and _squeezed(shape) == _squeezed(expected)
    ):
        raise ModelError(f"tensor {name} has shape {list(shape)}, expected {list(expected)}")


# A vector may be stored as a matrix of one row, and the other way round.
def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
