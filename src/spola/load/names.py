"""Short names of chat models that people run on processors: where they are, what is known before a download.

The figures are data, in ``names.toml``, read when they are asked for. Fetches nothing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from spola.spec.cost import weight_bytes
from spola.spec.decoder import DecoderSpec
from spola.spec.from_hf import spec_of_config
from spola.spec.manifest import manifest
from spola.spec.mixes import mix_types

__all__ = ["Known", "known", "known_models"]


@dataclass(frozen=True, slots=True)
class Known:
    """``name`` stands for ``file`` of ``repository``, of ``bytes`` bytes. ``context`` in tokens.

    ``shape``: the keys of the model's ``config.json`` that fix sizes. ``copies_head``: a tied embedding is in
    the file a second time, as the head. ``licence`` as the model's page calls it; empty where not looked up.
    """

    name: str
    repository: str
    file: str
    mix: str
    bytes: int
    context: int
    shape: Mapping[str, Any]
    licence: str = ""
    copies_head: bool = False

    @property
    def stem(self) -> str:
        return self.file.removesuffix(".gguf")

    @property
    def full_name(self) -> str:
        return f"{self.repository}:{self.stem}"

    def spec(self) -> DecoderSpec:
        """What its sizes follow from. Not for computing: constants such as rope scaling are left out."""
        spec = self._model()
        return replace(spec, head=replace(spec.head, tied=False)) if self.copies_head else spec

    def dtypes(self) -> dict[str, str]:
        """Canonical tensor name -> DType name, as the mix has them."""
        return mix_types(self.spec(), self.mix)

    def weights_bytes(self) -> int:
        return weight_bytes(self.spec(), self.dtypes())

    @property
    def parameters(self) -> int:
        """Numbers in all tensors of the model; a tied head counts once."""
        total = 0
        for info in manifest(self._model()):
            total += math.prod(info.shape) if info.required else 0
        return total

    def _model(self) -> DecoderSpec:
        return spec_of_config({**self.shape, "max_position_embeddings": self.context}, self.name)


def known(name: str) -> Known | None:
    """The model with this short name."""
    return next((row for row in known_models() if row.name == name), None)


@cache
def known_models() -> tuple[Known, ...]:
    """All rows, smallest file first."""
    text = resources.files("spola.load").joinpath("names.toml").read_text("utf-8")
    rows = (Known(**row) for row in tomllib.loads(text)["model"])
    return tuple(sorted(rows, key=lambda row: row.bytes))
