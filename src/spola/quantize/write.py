"""``quantize``: a model on disk -> a GGUF file of one weight type, streamed tensor by tensor.

Of a GGUF file the metadata stay as they are; of a folder they are made from its configuration and tokenizer,
and read back before anything is written. Rounds to nearest; no calibration. Needs no NumPy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError, ModelError
from spola.formats.gguf import FieldType, GgufFile, ValueType
from spola.formats.gguf_write import NewTensor, write_gguf
from spola.formats.tensors import TensorSource
from spola.load.model import Model
from spola.load.weights import Converter, convert_tensor, read_rows, source_dtypes
from spola.quantize.from_folder import folder_metadata, folder_tensors
from spola.spec.gguf_layout import Planned
from spola.spec.manifest import Role, TensorInfo, manifest
from spola.spec.sources import Piece
from spola.spec.weight_types import FLOATS, fallback_notes, target_type

__all__ = ["Written", "quantize"]

# llama_ftype of files that hold mostly one type.
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K": 14, "Q6_K": 18, "BF16": 32}
_U32 = FieldType(ValueType.UINT32)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: bytes of tensors by DType name, and lines on what did not take the type asked for."""

    path: Path
    tensors: int
    bytes_by_type: Mapping[str, int]
    notes: tuple[str, ...]


def quantize(
    model: Model,
    out: Path,
    wanted: str,
    convert: Converter,
    progress: Progress = lambda *_: None,
    *,
    again: bool = False,
) -> Written:
    """Write ``model`` to ``out`` with matrices of DType ``wanted``, or of what their rows allow.

    ``progress`` is called with (tensors done, of how many, name). ``again`` also takes tensors that are
    quantized already: their errors stay, and new ones are added. Raises ModelError naming the tensor that
    cannot be stored so, or what GGUF cannot say of a folder; ConfigError for a target that is the source.
    """
    _check_target(model, out)
    if isinstance(model.file, GgufFile):
        metadata, types = dict(model.file.metadata), dict(model.file.types)
        planned = _of_file(model, model.file)
        extra: dict[str, tuple[float, ...]] = {}
    else:
        planned = folder_tensors(model)
        metadata, types, extra = folder_metadata(model, planned)
    for key in [key for key in metadata if key.startswith("split.")]:
        del metadata[key]
    metadata |= {"general.file_type": _FILE_TYPES[wanted], "general.quantization_version": 2}
    types |= {"general.file_type": _U32, "general.quantization_version": _U32}
    chosen = [(p, _type_of(p, model.file, wanted, again)) for p in planned]
    count = len(chosen) + len(extra)
    tensors = [_divisors(name, values) for name, values in extra.items()]
    for index, (plan, name) in enumerate(chosen):
        data = partial(_data, model.file, plan, name, convert, partial(progress, index, count, plan.name))
        tensors.append(NewTensor(plan.name, BY_NAME[name], plan.info.shape, data))
    try:
        write_gguf(out, metadata, tensors, types=types)
    except OSError as error:  # a full disk; what was written is gone again
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype.name] = sizes.get(tensor.dtype.name, 0) + tensor.nbytes
    matrices = [(p.info.shape[-1], t, p.is_head) for p, t in chosen if t not in ("F32",)]
    return Written(out, len(tensors), sizes, tuple(fallback_notes(wanted, matrices)))


def _check_target(model: Model, out: Path) -> None:
    paths = model.file.paths
    if out.exists() and any(out.samefile(path) for path in paths if path.exists()):
        raise ConfigError(f"{out}: is the model itself; write to another file")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"{out}: is a folder, or lies in one that does not exist")


def _of_file(model: Model, file: GgufFile) -> list[Planned]:
    """Every tensor of the file, under its own name; those that the model does not use stay as they are."""
    roles: dict[str, tuple[Role, bool]] = {}
    head = "embedding" if model.spec.head.tied else "head"
    for info in manifest(model.spec):
        for piece in model.sources.get(info.name, ()):
            roles.setdefault(piece.name, (info.role, info.role == head))
    out = []
    for name, entry in file.tensors.items():
        role, is_head = roles.get(name, ("norm", False))
        rows = prod(entry.shape[:-1]) if len(entry.shape) > 1 else entry.shape[0]
        info = TensorInfo(name, name, (), entry.shape, role)
        keep = name not in roles or role == "rope"
        out.append(Planned(name, info, (Piece(name, 0, rows, rows),), 0.0, is_head, keep))
    return out


def _type_of(plan: Planned, file: TensorSource, wanted: str, again: bool) -> str:
    stored = source_dtypes(file, {plan.name: plan.source})[plan.name]
    if plan.keep:
        return stored
    target = target_type(plan.role, plan.info.shape[-1], wanted, is_head=plan.is_head)
    if target != stored and stored not in FLOATS and not again:
        raise ModelError(
            f"tensor {plan.name} is {stored} already; quantize a model in F32, F16 or BF16, "
            "or use --requantize"
        )
    return target


def _data(
    file: TensorSource, plan: Planned, target: str, convert: Converter, tell: Callable[[], None]
) -> Iterable[Any]:
    tell()
    stored = source_dtypes(file, {plan.name: plan.source})[plan.name]
    if plan.add:
        return _sums(file, plan, convert)
    if stored == target:
        return read_rows(file, plan.info, plan.source)
    return convert_tensor(file, plan.info, plan.source, target, convert)


def _sums(file: TensorSource, plan: Planned, convert: Converter) -> Iterable[Any]:
    """A small vector in F32, with something added to each value."""
    stored = source_dtypes(file, {plan.name: plan.source})[plan.name]
    parts = (
        read_rows(file, plan.info, plan.source)
        if stored == "F32"
        else convert_tensor(file, plan.info, plan.source, "F32", convert)
    )
    for part in parts:
        values = memoryview(part).cast("B").cast("f")
        yield _floats([value + plan.add for value in values])


def _divisors(name: str, values: tuple[float, ...]) -> NewTensor:
    return NewTensor(name, BY_NAME["F32"], (len(values),), _floats(values))


def _floats(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()
