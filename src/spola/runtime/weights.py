"""Quantizing while loading: the opened model with other weight types, and what converts its tensors.

Which tensor takes which type is ``spec.weight_types``; converting is native, whatever backend takes the
result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from spola.backends.native.convert import convert_rows
from spola.load.model import Model
from spola.load.weights import Converter
from spola.spec.cost import weight_bytes
from spola.spec.manifest import manifest
from spola.spec.weight_types import fallback_notes, planned_types

__all__ = ["converter", "with_weights"]


def with_weights(model: Model, wanted: str) -> Model:
    """``model`` whose matrices are given out as DType ``wanted``, or as what its rows allow instead.

    The fingerprint says so, and the warnings name what takes another type. Raises ModelError for a model that
    is quantized already.
    """
    spec = model.spec
    targets = planned_types(spec, model.dtypes, wanted)
    head = "embedding" if spec.head.tied else "head"
    changed = [(i.shape[-1], targets[i.name], i.role == head) for i in manifest(spec) if i.name in targets]
    return replace(
        model,
        targets=targets,
        weights_bytes=weight_bytes(spec, model.dtypes | targets),
        fingerprint=f"{model.fingerprint}+{wanted}",
        warnings=(*model.warnings, *(f"weights: {line}" for line in fallback_notes(wanted, changed))),
    )


def converter(threads: int) -> Converter:
    """Converts rows on ``threads`` threads."""
    return partial(convert_rows, threads=threads)
