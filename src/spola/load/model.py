"""An opened model: its spec, its tokenizer, its template and its tensors in manifest order.

GGUF today. Reads header and vocabulary at once and tensors when they are asked for, one at a time. Packs
and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.formats.gguf import GgufFile, open_gguf
from spola.formats.tensors import TensorSource
from spola.load.defaults import generation_defaults
from spola.load.resolve import ModelPath
from spola.load.weights import iter_tensors, source_dtypes
from spola.spec.cost import weight_bytes
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.manifest import manifest
from spola.spec.sources import Source
from spola.text.chat import find_template
from spola.text.tokenizer import Tokenizer

__all__ = ["Model", "open_model", "open_tokenizer"]


@dataclass(frozen=True)
class Model:
    """A model on disk, ready to be loaded into a backend. Close it, or use it as a context manager.

    ``weights_bytes`` counts the tensors as stored. ``defaults`` are sampling settings that the file asks for.
    ``fingerprint`` is a hash of header and tensor table, size and time of change. ``warnings`` are lines for
    the person.
    """

    name: str
    path: Path
    spec: DecoderSpec
    tokenizer: Tokenizer
    template: str | None
    defaults: Mapping[str, Any]
    fingerprint: str
    weights_bytes: int
    warnings: tuple[str, ...]
    file: TensorSource
    sources: Mapping[str, Source]

    @property
    def dtypes(self) -> dict[str, str]:
        """Canonical tensor name -> DType name, of what the file holds."""
        return source_dtypes(self.file, self.sources)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the manifest that the file holds, in manifest order.

        Each has a buffer of its own, which goes when the taker drops it: the largest tensor comes first,
        while a backend's own copy is still small.
        """
        return iter_tensors(self.file, manifest(self.spec), self.sources)

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_model(where: ModelPath) -> Model:
    """Open the model at ``where``. Raises ModelError naming the file and what is wrong with it."""
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
