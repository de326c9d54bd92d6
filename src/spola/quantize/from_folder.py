"""A Hugging Face folder in the words of GGUF: its keys, tokenizer, template and tensors.

Everything is read back and compared with what the folder says; what GGUF cannot say is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spola.core.errors import ModelError
from spola.formats.gguf import FieldType, ValueType
from spola.load.hf_folder import tokenizer_files
from spola.load.model import Model
from spola.spec.catalog import CATALOG
from spola.spec.gguf_layout import Planned, gguf_layout
from spola.spec.to_gguf import as_gguf_spec, check_read_back, gguf_keys, rope_divisors
from spola.text.to_gguf import gguf_tokenizer

__all__ = ["folder_metadata", "folder_tensors"]

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def folder_tensors(model: Model) -> list[Planned]:
    """The tensors of the GGUF file of ``model``, a folder. Raises ModelError for a family that has none."""
    return gguf_layout(model.spec, model.sources, _architecture(model))


def folder_metadata(
    model: Model, planned: Sequence[Planned]
) -> tuple[dict[str, Any], dict[str, FieldType], dict[str, tuple[float, ...]]]:
    """Keys, the types of those that have no usual one, and the values of tensors that no file holds.

    Raises ModelError naming what a GGUF file cannot say of this model.
    """
    arch = _architecture(model)
    spec = as_gguf_spec(model.spec, arch)
    divisors = {name: tuple(values) for name, values in rope_divisors(model.spec).items()}
    keys = gguf_keys(model.spec, arch) | {"general.name": model.spec.name}
    table = {p.name: ("F32", p.info.shape) for p in planned}
    check_read_back(spec, keys, table | {name: ("F32", (len(v),)) for name, v in divisors.items()})
    tokenizer, sentencepiece = tokenizer_files(model.path)
    keys |= gguf_tokenizer(model.tokenizer, tokenizer, sentencepiece, spec.vocab)
    if model.template is not None:
        keys["tokenizer.chat_template"] = model.template
    if model.tool_template is not None:
        keys["tokenizer.chat_template.tool_use"] = model.tool_template
    keys |= {f"general.sampling.{_SAMPLING[k]}": v for k, v in model.defaults.items() if k in _SAMPLING}
    return keys, _types(keys), divisors


def _architecture(model: Model) -> str:
    entry = next((row for row in CATALOG if row.model_type == model.spec.arch), None)
    if entry is not None and not entry.files:
        raise ModelError(f"{model.path}: GGUF files cannot say what a {entry.model_type} model is here")
    found = None if entry is None else entry.arch
    if found is None:
        raise ModelError(f"{model.path}: there is no GGUF architecture for model_type {model.spec.arch}")
    return found


def _types(keys: Mapping[str, Any]) -> dict[str, FieldType]:
    """Floats that happen to be whole stay floats, and lists have the element type that readers expect."""
    types = {}
    for key, value in keys.items():
        if isinstance(value, list) and key.endswith("scores"):
            types[key] = FieldType(ValueType.ARRAY, FieldType(ValueType.FLOAT32))
        elif (
            isinstance(value, list) and value and isinstance(value[0], int) and not isinstance(value[0], bool)
        ):
            types[key] = FieldType(ValueType.ARRAY, FieldType(ValueType.INT32))
        elif isinstance(value, list) and not value:
            types[key] = FieldType(ValueType.ARRAY, FieldType(ValueType.STRING))
    return types
