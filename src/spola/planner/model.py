"""What is planned: a model's spec and the storage type of its tensors, with no weight read.

From a GGUF file's header, a Hugging Face folder's configuration (and the headers of its safetensors, if they
are there), or the ``config.json`` of a repository on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spola.core.dtype import BY_NAME, DType
from spola.core.errors import ConfigError, ModelError
from spola.formats.gguf import open_gguf
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import open_folder
from spola.load.hub import fetch_one
from spola.load.names import Known, known
from spola.load.resolve import EMBEDDED_NAME, ModelPath, resolve_model
from spola.load.weights import source_dtypes
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.from_hf import from_hf, spec_of_config
from spola.spec.manifest import TensorInfo, manifest
from spola.spec.weight_types import FLOATS

__all__ = ["PlanModel", "model_at", "model_of_table", "open_plan_model", "with_weights"]

_TORCH = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ALIASES = {"FP32": "F32", "FP16": "F16"}
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MATRICES = ("embedding", "linear", "heads", "experts", "head")
_FALLBACK = "Q8_0"  # for rows that are no whole number of blocks


@dataclass(frozen=True, slots=True)
class PlanModel:
    """``dtypes``: canonical tensor name -> DType name. ``origin``: what was read; ``asked``: as typed.

    ``weights``: the type planned instead of the stored one; ``from_floats``: the stored one is no quantized.
    """

    name: str
    spec: DecoderSpec
    dtypes: Mapping[str, str]
    origin: str
    asked: str = ""
    weights: str | None = None
    from_floats: bool = False

    @property
    def parameters(self) -> int:
        """Numbers in all tensors; a tied head counts once."""
        return sum(_size(info) for info in manifest(self.spec) if info.name in self.dtypes)


def open_plan_model(name: str | None, weights: str | None = None) -> PlanModel:
    """The model called ``name`` (None: the embedded one), its weights as stored, or as ``weights`` says.

    Raises ConfigError or ModelError in one line.
    """
    model = replace(_open(name), asked=name or EMBEDDED_NAME)
    return model if weights is None else with_weights(model, weights)


def with_weights(model: PlanModel, kind: str) -> PlanModel:
    """``model`` with its matrices in ``kind``; rows that are no whole blocks of it are in Q8_0, else F16."""
    wanted = _ALIASES.get(kind.upper(), kind.upper())
    if wanted not in BY_NAME:
        raise ConfigError(f"--weights {kind!r}: use one of {', '.join(BY_NAME)}")
    dtypes = dict(model.dtypes)
    for info in manifest(model.spec):
        if info.name in dtypes and info.role in _MATRICES:
            kinds = (BY_NAME[wanted], BY_NAME[_FALLBACK], BY_NAME["F16"])
            dtypes[info.name] = next(k for k in kinds if _fits(info, k)).name
    floats = model.from_floats if model.weights is not None else set(model.dtypes.values()) <= set(FLOATS)
    origin = f"{model.origin}, planned with {wanted} weights"
    return replace(model, dtypes=dtypes, origin=origin, weights=wanted, from_floats=floats)


def _fits(info: TensorInfo, kind: DType) -> bool:
    return info.shape[-1] % kind.block == 0


def _open(name: str | None) -> PlanModel:
    if name is not None and Path(name).name == "config.json" and Path(name).is_file():
        name = str(Path(name).parent)
    try:
        where = resolve_model(name)
    except ConfigError:
        row = None if name is None else known(name)
        if row is not None:
            return model_of_table(row)
        if name is None or not _HUB.fullmatch(name):
            raise
        return _from_hub(name)
    return model_at(where)


def model_of_table(row: Known) -> PlanModel:
    """A model that is not here, by the figures of the table of short names."""
    return PlanModel(row.name, row.spec(), row.dtypes(), f"the table of short names ({row.full_name})")


def model_at(where: ModelPath) -> PlanModel:
    """The model at ``where``, by its header or configuration. Raises ModelError in one line."""
    if where.kind == "hf":
        return _from_folder(where)
    with open_gguf(where.path) as file:
        try:
            table = {key: (entry.dtype.name, entry.shape) for key, entry in file.tensors.items()}
            spec, _ = from_gguf(file.metadata, table)
            dtypes = source_dtypes(file, gguf_sources(spec, table))
        except ModelError as error:
            raise ModelError(f"{file.path}: {error}") from None
    return PlanModel(where.name, spec, dtypes, f"the header of {file.path.name}")


def _from_folder(where: ModelPath) -> PlanModel:
    config = read_json(where.path / "config.json")
    if any(where.path.glob("*.safetensors")):
        with open_folder(where.path) as file:
            table = {key: (entry.dtype.name, entry.shape) for key, entry in file.tensors.items()}
            model = from_hf(config, table, where.name)
            dtypes = source_dtypes(file, model.sources)
        origin = f"config.json and tensor tables of {where.path.name}"
        return PlanModel(where.name, model.spec, dtypes, origin)
    return _from_config(config, where.name, f"config.json of {where.path.name}")


def _from_config(config: Mapping[str, Any], name: str, origin: str) -> PlanModel:
    spec = spec_of_config(config, name)
    stored = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    kind = _TORCH.get(str(stored))
    if kind is None:
        raise ModelError(f"{origin}: torch_dtype {stored!r} is none of {', '.join(_TORCH)}")
    dtypes = {info.name: kind for info in manifest(spec) if info.required}
    return PlanModel(name, spec, dtypes, origin)


def _from_hub(name: str) -> PlanModel:
    """The configuration alone is fetched: a few kilobytes."""
    path = fetch_one(name, "config.json")
    return _from_config(read_json(path), name, f"config.json of {name} on the hub")


def _size(info: TensorInfo) -> int:
    size = 1
    for n in info.shape:
        size *= n
    return size
