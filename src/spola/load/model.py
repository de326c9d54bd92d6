"""Opens the model at a path, whatever it is: a GGUF file here, a Hugging Face folder in ``load.hf_folder``.

Reads header and vocabulary at once and tensors when they are asked for, one at a time.
"""

from __future__ import annotations

from pathlib import Path

from spola.core.errors import ModelError
from spola.formats.gguf import GgufFile, open_gguf
from spola.load.defaults import generation_defaults
from spola.load.hf_folder import is_hf_folder, open_hf_folder, open_hf_tokenizer
from spola.load.opened import Model
from spola.load.resolve import ModelPath
from spola.load.weights import source_dtypes
from spola.spec.cost import weight_bytes
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.text.chat import find_template
from spola.text.tokenizer import Tokenizer

__all__ = ["Model", "open_model", "open_tokenizer"]


def open_model(where: ModelPath) -> Model:
    """Open the model at ``where``. Raises ModelError naming the file and what is wrong with it."""
    if where.kind == "hf":
        return open_hf_folder(where)
    file = open_gguf(where.path)
    try:
        return _read(where, file)
    except ModelError as error:
        file.close()
        raise _naming(file.path, error) from None
    except BaseException:
        file.close()
        raise


def open_tokenizer(path: Path) -> Tokenizer:
    """Only the tokenizer of the model at ``path``, which may hold nothing else."""
    if is_hf_folder(path):
        return open_hf_tokenizer(path)
    with open_gguf(path, allow_unsupported=True) as file:
        try:
            return Tokenizer.from_gguf(file.metadata)
        except ModelError as error:
            raise _naming(file.path, error) from None


def _read(where: ModelPath, file: GgufFile) -> Model:
    table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
    spec, warnings = from_gguf(file.metadata, table)
    sources = gguf_sources(spec, table)
    template = find_template(file.metadata)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    defaults, more = generation_defaults(file.metadata)
    return Model(
        name=where.name,
        path=file.path,
        spec=spec,
        tokenizer=tokenizer,
        template=template,
        tool_template=find_template(file.metadata, tools=True),
        defaults=defaults,
        fingerprint=file.fingerprint,
        weights_bytes=weight_bytes(spec, source_dtypes(file, sources)),
        warnings=(*warnings, *more),
        file=file,
        sources=sources,
    )


def _naming(path: Path, error: ModelError) -> ModelError:
    text = str(error)
    return error if str(path) in text else ModelError(f"{path}: {text}")
