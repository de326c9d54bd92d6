"""An opened model: its spec, its tokenizer, its template and its tensors in manifest order.

What ``load.model`` makes of a GGUF file and ``load.hf_folder`` of a folder. Packs and computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spola.core.closing import Closing
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.formats.files import path_text
from spola.formats.gguf import GgufFile
from spola.formats.tensors import TensorSource
from spola.load.weights import Converter, iter_tensors, source_dtypes
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import in_load_order
from spola.spec.sources import Source
from spola.text.tokenizer import Tokenizer

__all__ = ["Model"]

_TENSOR = re.compile(r"tensor '?([\w.]+)'?")  # at the start of a message


@dataclass(frozen=True)
class Model(Closing):
    """A model on disk, ready to be loaded into a backend. Close it, or use it as a context manager.

    ``weights_bytes`` counts the tensors as they are given out: as stored, but for those of ``targets``
    (canonical name -> DType name), which are converted on the way. ``defaults`` are sampling settings that
    the file asks for. ``fingerprint`` is a hash of header and tensor table, size and time of change.
    ``warnings`` are lines for the person.
    """

    name: str
    path: Path
    spec: DecoderSpec
    tokenizer: Tokenizer
    template: str | None
    tool_template: str | None  # for requests with tools, where the model has one of its own for these
    defaults: Mapping[str, Any]
    fingerprint: str
    weights_bytes: int
    warnings: tuple[str, ...]
    file: TensorSource
    sources: Mapping[str, Source]
    targets: Mapping[str, str] = field(default_factory=dict)

    @property
    def dtypes(self) -> dict[str, str]:
        """Canonical tensor name -> DType name, of the tensors as they are given out."""
        return source_dtypes(self.file, self.sources) | dict(self.targets)

    def tensors(self, convert: Converter | None = None) -> Iterator[Tensor]:
        """Every tensor of the manifest that the file holds: the embedding and the head, then the layers.

        Each has a buffer of its own, which goes when the taker drops it: the largest tensors come first,
        while a backend's own copy is still small. ``convert`` is needed where there are ``targets``.
        """
        return iter_tensors(self.file, in_load_order(self.spec), self.sources, self.targets, convert)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """A ModelError from inside names the file or folder, and a tensor also as that calls it."""
        try:
            yield
        except ModelError as error:
            text, place = str(error), path_text(self.path)
            match = _TENSOR.match(text)
            stored = self.sources.get(match[1]) if match else None
            if match and stored and stored[0].name != match[1]:
                text = f"tensor {stored[0].name}, {match[1]}{text[match.end() :]}"
            raise ModelError(text if place in text else f"{place}: {text}") from None

    def drop_vocabulary(self) -> None:
        """Let go of the header's vocabulary, as large as the tokenizer, once all has been made of it."""
        if isinstance(self.file, GgufFile):
            self.file.drop_lists()

    def close(self) -> None:
        self.file.close()
