"""Sites of adapters: which module of a Hugging Face model each matrix of a spec belongs to, and which rows of
it.

An adapter is made for the modules of the ``transformers`` library; a manifest may hold their parts (q, k and
v of a merged matrix) and, from GGUF, the rows of q and k in another order. Reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spola.core.errors import ModelError
from spola.spec.catalog import CATALOG
from spola.spec.decoder import DecoderSpec
from spola.spec.gguf_layout import has_pairs, pair_order, picked
from spola.spec.hf_rows import ROWS, HfRow
from spola.spec.manifest import TensorInfo, manifest
from spola.spec.sources import Merged, Piece

__all__ = ["Site", "adapter_sites"]


@dataclass(frozen=True, slots=True)
class Site:
    """``info``: the matrix. ``modules``: the names it may have, best first. ``rows``: which rows of the
    module's output it is, as pieces of a tensor with ``rows_in_module`` rows; their names mean nothing.
    ``transposed``: the checkpoint stores [in, out].
    """

    info: TensorInfo
    modules: tuple[str, ...]
    rows: tuple[Piece, ...]
    rows_in_module: int
    transposed: bool


def adapter_sites(spec: DecoderSpec) -> list[Site]:
    """Every matrix of ``spec`` that adapters may change: attention and dense MLPs of all layers.

    A matrix that checkpoints merge with others is there once for each way of naming it. Raises ModelError for
    a family whose module names are not known.
    """
    row = _row(spec)
    names = row.names.names()
    infos = {info.name: info for info in manifest(spec) if info.role == "linear"}
    out: list[Site] = []
    for info in infos.values():
        transposed = names.transposed(info)
        direct = tuple(name.removesuffix(".weight") for name in names.direct(info))
        rows = info.shape[0]
        whole = (Piece("", 0, rows, rows),)
        out.append(Site(info, direct, _ordered(info, whole, spec, row), rows, transposed))
        for merged in names.merged:
            site = _merged(info, merged, infos, names.layer, spec)
            if site is not None:
                pieces, total, module = site
                out.append(Site(info, (module,), _ordered(info, pieces, spec, row), total, transposed))
    return out


def _row(spec: DecoderSpec) -> HfRow:
    """The row of the folder's model type, or of the first one that has this GGUF architecture."""
    if spec.arch in ROWS:
        return ROWS[spec.arch]
    found = next((e.model_type for e in CATALOG if e.arch == spec.arch and e.model_type in ROWS), None)
    if found is None:
        raise ModelError(f"adapters for architecture {spec.arch} are not supported")
    return ROWS[found]


def _merged(
    info: TensorInfo, merged: Merged, infos: Mapping[str, TensorInfo], layer: str, spec: DecoderSpec
) -> tuple[tuple[Piece, ...], int, str] | None:
    part = next((p for p in merged.parts if f".{p}." in info.name), None)
    if part is None:
        return None
    prefix = info.name.split(f"{part}.")[0]
    group = [infos[f"{prefix}{p}.weight"] for p in merged.parts if f"{prefix}{p}.weight" in infos]
    rows = [member.shape[0] for member in group]
    index = int(prefix.split(".")[1])
    attention: Any = spec.layers[index].attention
    runs = 1 if merged.order == "blocks" else attention.kv_heads
    before = sum(rows[: merged.parts.index(part)]) // runs
    piece = Piece("", before, info.shape[0] // runs, sum(rows) // runs, runs)
    return (piece,), sum(rows), f"{layer.replace('{i}', str(index))}{merged.name}"


def _ordered(info: TensorInfo, rows: tuple[Piece, ...], spec: DecoderSpec, row: HfRow) -> tuple[Piece, ...]:
    """In the order of the loaded model: a GGUF file may have q and k interleaved where the folder
    has halves.
    """
    if row.layout == "interleaved" or not has_pairs(spec):
        return rows
    order = pair_order(info, spec)
    return rows if order is None else tuple(picked(rows, order))
