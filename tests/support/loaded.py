"""A family's case on a runner, loaded from a folder or a GGUF file as a model of that kind is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from spola.backends.registry import backend
from spola.core.runner import Runner, Tensor
from spola.formats.gguf import open_gguf
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import open_folder
from spola.load.adapter import open_adapter
from spola.load.weights import iter_tensors
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.from_hf import from_hf
from spola.spec.manifest import manifest
from support.families import Case, Run, read_case

__all__ = [
    "NO_GGUF",
    "ONLY_GGUF",
    "Loaded",
    "case_of",
    "check",
    "convert",
    "cosines",
    "differ",
    "load",
    "make_runner",
    "opened",
]

# Of gpt-oss the folders are in MXFP4, which is refused by its name.
ONLY_GGUF = ("gpt_oss",)
# What GGUF cannot say: a latent turned in halves, a serial Falcon, a window in Qwen from some layer on, some
# layers without experts, scores scaled by layer, or (Gemma 3) by a number of their own, heads of MiniCPM3.
NO_GGUF = (
    "deepseek_v3-plain",
    "falcon-serial",
    "gemma3",
    "gpt2-scaled",
    "minicpm3",
    "qwen2-window",
    "qwen3_moe-mixed",
)
_TOLERANCE = 1e-4  # of a row's largest logit


@cache
def case_of(name: str) -> Case:
    return read_case(name)


def make_runner(kind: str) -> Runner:
    if kind == "native" and find_spec("spola._native") is None:
        pytest.skip("the native extension is not built")
    return backend(kind)()


@dataclass
class Opened:
    spec: DecoderSpec
    warnings: tuple[str, ...]
    tensors: Iterable[Tensor]


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """What a folder or a GGUF file says of its model, and its tensors while it is open."""
    with open_gguf(path) if path.suffix == ".gguf" else open_folder(path) as file:
        table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
        if path.suffix == ".gguf":
            spec, warnings = from_gguf(file.metadata, table)  # type: ignore[union-attr]
            sources = gguf_sources(spec, table)
        else:
            model = from_hf(read_json(path / "config.json"), table)
            spec, warnings, sources = model.spec, model.warnings, model.sources
        yield Opened(spec, tuple(warnings), iter_tensors(file, manifest(spec), sources))


@dataclass
class Loaded:
    case: Case
    run: Run
    warnings: tuple[str, ...]

    @property
    def runner(self) -> Runner:
        return self.run.runner

    def logits(self, chunks: tuple[int, ...], adapter: str | None = None) -> np.ndarray:
        """Of the case's ids."""
        self.run.adapter = adapter
        return self.run.logits(self.case.ids, chunks)


def load(
    path: Path, case: Case, kind: str, threads: int = 1, adapters: Mapping[str, Path] | None = None
) -> Loaded:
    runner = make_runner(kind)
    with opened(path) as model:
        config = Run.make_config(model.spec, case.served or model.spec.context, threads)
        config = msgspec.structs.replace(config, max_lora_rank=8 if adapters else 0)
        runner.load(model.spec, model.tensors, config)
    for name, folder in (adapters or {}).items():
        runner.add_adapter(open_adapter(folder, name, model.spec, convert))
    return Loaded(case, Run(runner, config, model.spec.vocab), model.warnings)


def convert(source: str, target: str, rows: int, columns: int, data: object) -> bytearray:
    """What adapters and written files are converted with, on one thread."""
    from spola.backends.native.convert import convert_rows  # where the native extension is built

    return convert_rows(source, target, rows, columns, data, 1)


def differ(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference between logits [n, columns], as a part of its row's largest."""
    return float(_by_row(found, wanted).max())


def check(found: np.ndarray, case: Case) -> None:
    """That ``found`` f32 [n, vocab] are the logits that ``transformers`` gave."""
    rows = _by_row(found[:, case.columns], case.logits)
    assert rows.max() < _TOLERANCE, f"position {rows.argmax()} differs by {rows.max():.2e}"


def cosines(found: np.ndarray, case: Case) -> np.ndarray:
    """[n], of the angle between each row of ``found`` f32 [n, vocab] and the case's."""
    found = found[:, case.columns]
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(case.logits, axis=1)
    return (found * case.logits).sum(axis=1) / lengths


def _by_row(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
