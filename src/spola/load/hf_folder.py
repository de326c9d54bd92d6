"""A Hugging Face folder -> an opened model: configuration, weights, tokenizer, template, sampling defaults.

Only JSON, Jinja source and safetensors are read; nothing pickled, and no code that a model brings along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error, path_text
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import FolderTensors, open_folder
from spola.load.defaults import folder_defaults
from spola.load.opened import Model
from spola.load.resolve import ModelPath
from spola.load.weights import source_dtypes
from spola.spec.cost import weight_bytes
from spola.spec.from_hf import HfModel, from_hf, refuse_quantized
from spola.text.hf import build_tokenizer
from spola.text.spm_file import gguf_keys_of
from spola.text.tekken import tekken_config, tokenizer_json_of
from spola.text.tokenizer import Tokenizer

__all__ = ["folder_template", "is_hf_folder", "open_hf_folder", "open_hf_tokenizer", "tokenizer_files"]

_TEKKEN = "tekken.json"
_TOKENIZER_LIMIT = 128 << 20
_TEMPLATE_LIMIT = 1 << 20
_COMPARED = 1 << 20  # bytes at a time


def is_hf_folder(path: Path) -> bool:
    return path.is_dir() and (path / "config.json").exists()


def open_hf_folder(where: ModelPath) -> Model:
    """Open the model in the folder ``where.path``.

    Raises ModelError naming the folder or file and what is wrong with it.
    """
    folder = where.path
    try:
        config = read_json(folder / "config.json")
        refuse_quantized(config)
        file = open_folder(folder)
    except ModelError as error:
        raise _naming(folder, error) from None
    if file.unscaled and config.get("quantization_config"):
        file.close()
        problem = f"has no scales for tensor {file.unscaled[0]}"
        raise file_error(folder, f"{problem}, although config.json says that it is quantized")
    try:
        return _read(where, config, file)
    except ModelError as error:
        file.close()
        raise _naming(folder, error) from None
    except BaseException:
        file.close()
        raise


def open_hf_tokenizer(folder: Path) -> Tokenizer:
    """Only the tokenizer of the model in ``folder``; its weights need not be there."""
    try:
        config = read_json(folder / "config.json")
        return _tokenizer(folder, config, _optional(folder / "generation_config.json"))
    except ModelError as error:
        raise _naming(folder, error) from None


def tokenizer_files(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The parsed ``tokenizer.json``, and ``tokenizer.model`` as GGUF's keys; None for one that is
    not there. Where there are neither, ``tekken.json`` as ``tokenizer.json``.
    """
    path, sentencepiece = folder / "tokenizer.json", folder / "tokenizer.model"
    data = read_json(path, _TOKENIZER_LIMIT) if path.exists() else None
    if data is None and not sentencepiece.exists() and (folder / _TEKKEN).exists():
        data = tokenizer_json_of(read_json(folder / _TEKKEN, _TOKENIZER_LIMIT))
    keys = None
    if sentencepiece.exists():
        settings = _optional(folder / "tokenizer_config.json")
        keys = gguf_keys_of(_whole(sentencepiece, _TOKENIZER_LIMIT), settings)
    return data, keys


def _read(where: ModelPath, config: Mapping[str, Any], file: FolderTensors) -> Model:
    folder = where.path
    table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
    # Types that cannot be loaded are named when such a tensor is needed, not when it only lies there.
    table |= {name: (tensor.type_name, tensor.shape) for name, tensor in file.unsupported.items()}
    model = from_hf(config, table, where.name)
    if model.spec.head.tied and _has_own_head(file, model):
        model = from_hf(config, table, where.name, tied=False)
        note = "lm_head.weight differs from the embedding that it should be tied to, and is used"
        model = replace(model, warnings=(*model.warnings, note))
    generation = _optional(folder / "generation_config.json")
    defaults, warnings = folder_defaults(generation)
    return Model(
        name=where.name,
        path=folder,
        spec=model.spec,
        tokenizer=_tokenizer(folder, config, generation),
        template=folder_template(folder),
        tool_template=folder_template(folder, "tool_use"),
        defaults=defaults,
        fingerprint=file.fingerprint,
        weights_bytes=weight_bytes(model.spec, source_dtypes(file, model.sources)),
        warnings=(*model.warnings, *warnings),
        file=file,
        sources=model.sources,
    )


def _has_own_head(file: FolderTensors, model: HfModel) -> bool:
    """Whether a tied model's files hold a head that is another one: ``transformers`` then uses it."""
    heads = [entry for name, entry in file.tensors.items() if name.endswith("lm_head.weight")]
    embedding = file.entry(model.sources["embedding.weight"][0].name)
    if not heads or heads[0].name == embedding.name:
        return False
    head = heads[0]
    if (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return True
    for start in range(0, head.nbytes, _COMPARED):
        size = min(_COMPARED, head.nbytes - start)
        if file.read_range(head.name, start, size) != file.read_range(embedding.name, start, size):
            return True
    return False


def _tokenizer(folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Tokenizer:
    ends = _ids(generation, "generation_config.json") | _ids(config, "config.json")
    settings = _optional(folder / "tokenizer_config.json")
    path, sentencepiece = folder / "tokenizer.json", folder / "tokenizer.model"
    if path.exists():
        return build_tokenizer(read_json(path, _TOKENIZER_LIMIT), settings, ends)
    if sentencepiece.exists():
        keys = gguf_keys_of(_whole(sentencepiece, _TOKENIZER_LIMIT), settings)
        return Tokenizer.from_gguf(keys, ends)
    if (folder / _TEKKEN).exists():
        data = tokenizer_json_of(read_json(folder / _TEKKEN, _TOKENIZER_LIMIT))
        return build_tokenizer(data, tekken_config(settings), ends)
    raise file_error(folder, "has no tokenizer.json, tokenizer.model or tekken.json; one of them is needed")


def _ids(values: Mapping[str, Any], name: str) -> set[int]:
    """``eos_token_id``, one or a list."""
    found = values.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ModelError(f"{name}: eos_token_id must be a token id or a list of them")
    return set(ids)


def folder_template(folder: Path, name: str = "default") -> str | None:
    """The source of the chat template called ``name``; None without one.

    It is in a file of its own, else in one of two JSON files. Raises ModelError for a link that leads
    elsewhere: a template is shown to clients, and must not show them any other file of this machine.
    """
    own = folder / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
    if own.exists():
        _stay_inside(folder, own)
        try:
            return _whole(own, _TEMPLATE_LIMIT).decode() or None
        except UnicodeDecodeError as error:
            raise file_error(own, f"is not UTF-8 at byte {error.start}") from None
    for file in ("tokenizer_config.json", "chat_template.json"):
        found = _template_in(_optional(folder / file).get("chat_template"), file, name)
        if found:
            return found
    return None


def _stay_inside(folder: Path, path: Path) -> None:
    """Refuse a link out of the folder, but to where the configuration is too, as in the hub's cache."""
    place, config = path.resolve(), (folder / "config.json").resolve()
    if not place.is_relative_to(folder.resolve()) and place.parent != config.parent:
        raise file_error(path, "is a link out of the model's folder; put the template itself there")


def _template_in(value: Any, name: str, wanted: str) -> str | None:
    """A template, which is the default, or the one called ``wanted`` of a list of named ones."""
    if isinstance(value, list):
        named = [row for row in value if isinstance(row, Mapping) and isinstance(row.get("name"), str)]
        if len(named) != len(value):
            raise ModelError(f"{name}: chat_template must hold objects with name and template")
        value = next((row.get("template") for row in named if row["name"] == wanted), None)
    elif isinstance(value, str) and wanted != "default":
        return None
    if value is not None and not isinstance(value, str):
        raise ModelError(f"{name}: chat_template must be a string or a list of named ones")
    return value


def _whole(path: Path, limit: int) -> bytes:
    with RegularFile(path) as file:
        if file.size > limit:
            raise file_error(path, f"has {file.size} bytes; at most {limit} are read")
        return bytes(file.read(0, file.size))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _naming(folder: Path, error: ModelError) -> ModelError:
    text = str(error)
    return error if path_text(folder) in text else ModelError(f"{path_text(folder)}: {text}")
