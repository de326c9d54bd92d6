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
from spola.load.defaults import generation_defaults
from spola.load.resolve import ModelPath
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf
from spola.spec.manifest import manifest
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
    file: GgufFile

    @property
    def dtypes(self) -> dict[str, str]:
        """Canonical tensor name -> DType name, of what the file holds."""
        entries = self.file.tensors
        return {i.name: entries[i.gguf].dtype.name for i in manifest(self.spec) if i.gguf in entries}

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the manifest that the file holds, in manifest order.

        Each has a buffer of its own, which goes when the taker drops it: the largest tensor comes first,
        while a backend's own copy is still small.
        """
        entries = self.file.tensors
        for info in manifest(self.spec):
            entry = entries.get(info.gguf)
            if entry is not None:
                data = memoryview(self.file.read(info.gguf)).toreadonly()
                yield Tensor(info.name, entry.dtype.name, entry.shape, data)

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
        weights_bytes=sum(
            file.tensors[info.gguf].nbytes for info in manifest(spec) if info.gguf in file.tensors
        ),
        warnings=(*warnings, *more),
        file=file,
    )


def _naming(path: Path, error: ModelError) -> ModelError:
    text = str(error)
    return error if str(path) in text else ModelError(f"{path}: {text}")
