"""Where each tensor of a GGUF file comes from in a Hugging Face folder: names, order of rows, merged
matrices.

A plan of plain numbers over ``spec.sources``; the loader's code moves the bytes. Orders of rows are those
that the ecosystem's readers expect: q and k interleaved for some architectures, q, k and v joined for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from spola.spec.decoder import Attention, DecoderSpec, RmsNorm
from spola.spec.gguf_rows import ROWS, GgufRow
from spola.spec.manifest import Role, TensorInfo, manifest
from spola.spec.sources import Piece, Source

__all__ = ["Planned", "gguf_layout", "has_pairs", "pair_order", "picked"]

# Architectures whose readers know q, k and v only as one matrix.
_JOINED = ("phi3", "gpt2", "gptneox", "falcon", "phi2", "chatglm")
_QKV = ("attention.q", "attention.k", "attention.v")


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor to write.

    ``add``: what is added to each value (norms that checkpoints store less one). ``is_head``: logits are made
    with it. ``keep``: whatever its role, its type stays.
    """

    name: str
    info: TensorInfo
    source: Source
    add: float = 0.0
    is_head: bool = False
    keep: bool = False

    @property
    def role(self) -> Role:
        return self.info.role


def gguf_layout(spec: DecoderSpec, sources: Mapping[str, Source], arch: str) -> list[Planned]:
    """The tensors of a GGUF file of ``spec``, a model of a folder, in the order of its manifest.

    Divisors of ropes are not among them: no tensor of the folder holds them.
    """
    row = ROWS[arch]
    out: list[Planned] = []
    joined: dict[str, list[Planned]] = {}
    for info in manifest(spec):
        source = sources.get(info.name)
        if source is None:
            continue
        planned = Planned(
            _name(info, spec, row),
            info,
            _ordered(info, source, spec, row),
            _offset(info, spec),
            info.role == ("embedding" if spec.head.tied else "head"),
        )
        target = _join(info, arch, row)
        if target is None:
            out.append(planned)
        else:
            joined.setdefault(target, []).append(planned)
            if len(joined[target]) == 1:
                out.append(planned)
    return [_whole(p, joined) for p in out]


def _name(info: TensorInfo, spec: DecoderSpec, row: GgufRow) -> str:
    stem, kind = info.name.rsplit(".", 1)
    part = stem.rsplit(".", 1)[-1]
    names = row.renames.get(part)
    if not names or not info.name.startswith("layers."):
        return info.gguf
    two = spec.layers[int(stem.split(".")[1])].pre_mlp_norm is not None
    return f"{info.gguf.rsplit('.', 2)[0]}.{names[0] if two else names[-1]}.{kind}"


def _join(info: TensorInfo, arch: str, row: GgufRow) -> str | None:
    """The name of the joined tensor that this one is a part of."""
    if not info.name.startswith("layers."):
        return None
    block, kind = info.gguf.rsplit(".", 2)[0], info.name.rsplit(".", 1)[1]
    if arch in _JOINED and any(f".{part}." in info.name for part in _QKV):
        return f"{block}.attn_qkv.{kind}"
    if row.merged_mlp and (".mlp.gate." in info.name or ".mlp.up." in info.name):
        return f"{block}.ffn_up.{kind}"
    return None


def _whole(planned: Planned, joined: Mapping[str, list[Planned]]) -> Planned:
    for name, parts in joined.items():
        if parts[0] is planned:
            rows = sum(part.info.shape[0] for part in parts)
            info = replace(planned.info, shape=(rows, *planned.info.shape[1:]))
            return replace(planned, name=name, info=info, source=tuple(p for x in parts for p in x.source))
    return planned


def _offset(info: TensorInfo, spec: DecoderSpec) -> float:
    if info.role != "norm" or not info.name.endswith(".weight") or not isinstance(spec.final_norm, RmsNorm):
        return 0.0
    return spec.final_norm.offset  # a family's norms are all alike


def _ordered(info: TensorInfo, source: Source, spec: DecoderSpec, row: GgufRow) -> Source:
    """Rows of q and k by turns from both halves of a head, where the architecture wants pairs together."""
    if row.layout != "interleaved" or has_pairs(spec):
        return source
    order = pair_order(info, spec)
    return source if order is None else tuple(picked(source, order))


def has_pairs(spec: DecoderSpec) -> bool:
    """Whether ropes of ``spec`` turn neighbours, so that the rows of q and k lie in that order."""
    return any(getattr(layer.attention.positions, "layout", "half") == "interleaved" for layer in spec.layers)


def pair_order(info: TensorInfo, spec: DecoderSpec) -> list[int] | None:
    """From rows of q or k in halves to rows in pairs: which row comes when. None for any other tensor."""
    if not any(f".{part}." in info.name for part in _QKV[:2]):
        return None
    attention = spec.layers[int(info.name.split(".")[1])].attention
    if not isinstance(attention, Attention):
        return None
    rotated = getattr(attention.positions, "dim", attention.k_dim)
    rows = info.shape[0] if len(info.shape) == 1 else prod(info.shape[:-1])
    heads = range(0, rows, attention.k_dim)
    return [head + pair for head in heads for pair in _pairs(rotated, attention.k_dim)]


def _pairs(rotated: int, dim: int) -> Iterator[int]:
    for i in range(rotated // 2):
        yield from (i, i + rotated // 2)
    yield from range(rotated, dim)


def picked(source: Source, order: list[int]) -> Iterator[Piece]:
    """The rows ``order`` of the tensor that ``source`` makes."""
    where: list[tuple[Piece, int]] = []
    for piece in source:
        for run in range(piece.runs):
            first = piece.start + run * piece.stride
            where += [(piece, first + i) for i in range(piece.rows)]
    for index in order:
        piece, row = where[index]
        yield Piece(piece.name, row, 1, 1, transposed=piece.transposed)
