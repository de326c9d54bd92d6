"""Tiny random models of every family, with the logits that ``transformers`` gave for them.

The fixtures hold a ``config.json``, the names and shapes of the tensors and a seed; the weights are made
again (``support.seeded``) and written as a folder. ``Run`` drives a Runner over one request, in any chunks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spola.core.dtype import BY_NAME
from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, Runner, RunnerConfig
from spola.core.step import RequestState, Slice, Step, pack_ids
from spola.formats.output import NewTensor
from spola.formats.safetensors import write_safetensors
from spola.spec.decoder import DecoderSpec
from spola.spec.kv import kv_groups
from support.blocks import encode
from support.seeded import digest, seeded_weights

__all__ = ["CASES", "Case", "Run", "read_case", "write_folder"]

_FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "families"
CASES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
GONE = -1


@dataclass(frozen=True)
class Case:
    """One fixture: ``logits`` f32 [64, len(columns)] are those of ``ids``, ``greedy`` follows them."""

    name: str
    config: dict[str, Any]
    served: int | None
    weights: Mapping[str, np.ndarray]
    ids: list[int]
    columns: list[int]
    logits: np.ndarray
    greedy: list[int]

    @property
    def text_config(self) -> dict[str, Any]:
        """The configuration of the decoder: a part of the file's, where that is of a model with images."""
        return self.config.get("text_config", self.config)


def read_case(name: str) -> Case:
    raw = json.loads((_FOLDER / f"{name}.json").read_text())
    weights = seeded_weights(raw["tensors"], raw["seed"], raw["norm_mean"], raw["embedding_std"])
    assert digest(weights) == raw["weights_sha256"], "NumPy makes other random numbers than it did"
    flat = np.frombuffer(base64.b64decode(raw["logits"]), "<f4")
    return Case(
        name=name,
        config=raw["config"],
        served=raw["served"],
        weights=weights,
        ids=raw["ids"],
        columns=raw["columns"],
        logits=flat.reshape(len(raw["ids"]), len(raw["columns"])),
        greedy=raw["greedy"],
    )


def write_folder(folder: Path, case: Case, *, shards: int = 1, dtype: str = "F32") -> None:
    """Write ``config.json`` and the weights, in one file or in ``shards`` with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    tensors = [_tensor(name, values, dtype) for name, values in case.weights.items()]
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
        return
    table: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = tensors[shard::shards]
        write_safetensors(folder / name, part, {"format": "pt"})
        table |= {tensor.name: name for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


def _tensor(name: str, values: np.ndarray, dtype: str) -> NewTensor:
    return NewTensor(name, BY_NAME[dtype], values.shape, encode(dtype, values))


class Run:
    """One request on ``runner``, loaded with ``config``; blocks behind a window are given up."""

    _next = 0

    def __init__(self, runner: Runner, config: RunnerConfig, vocab: int) -> None:
        self.runner, self.config, self.vocab = runner, config, vocab
        self.adapter: str | None = None

    @staticmethod
    def make_config(spec: DecoderSpec, length: int, threads: int = 1) -> RunnerConfig:
        groups = kv_groups(spec, "f32", "f32")
        blocks = -(-length // BLOCK_TOKENS) + 3
        return RunnerConfig(
            kv_groups=groups,
            kv_blocks=(blocks,) * len(groups),
            max_step_tokens=4096,
            max_seqs=4,
            max_model_len=length,
            threads=threads,
        )

    def logits(self, ids: Sequence[int], chunks: Sequence[int]) -> np.ndarray:
        """f32 [len(ids), vocab], computed in slices of the sizes ``chunks``, the last one repeated."""
        state = self._state(ids, len(ids), "logits")
        rows = []
        for step, (start, end) in enumerate(_spans(len(ids), chunks)):
            piece = Slice(state.id, start, pack_ids(ids[start:end]), self._tables(start, end), end - start)
            output = self.runner.execute(Step(step, (piece,), new=(state,) if start == 0 else ()))
            assert output.slices[0].error is None, output.slices[0].error
            rows.append(np.frombuffer(output.slices[0].logits or b"", "<f4").reshape(-1, self.vocab))
        return np.concatenate(rows)

    def greedy(self, prompt: Sequence[int], steps: int) -> list[int]:
        """``steps`` tokens after ``prompt``, by the backend's own sampler."""
        known = list(prompt)
        state = self._state(prompt, len(prompt), "sample")
        start = 0
        for step in range(steps):
            piece = Slice(state.id, start, pack_ids(known[start:]), self._tables(start, len(known)), 1)
            output = self.runner.execute(Step(step, (piece,), new=(state,) if step == 0 else ()))
            assert output.slices[0].error is None, output.slices[0].error
            start = len(known)
            known += output.slices[0].ids
        return known[len(prompt) :]

    def _state(self, ids: Sequence[int], n_prompt: int, want: Any) -> RequestState:
        Run._next += 1
        return RequestState(
            Run._next,
            0,
            1,
            pack_ids(ids),
            n_prompt,
            SamplingParams(temperature=0.0),
            want=want,
            adapter=self.adapter,
        )

    def _tables(self, start: int, end: int) -> tuple[bytes, ...]:
        """Blocks from the last backwards, so that a table is no identity; those behind a window are gone."""
        out = []
        for group, n in zip(self.config.kv_groups, self.config.kv_blocks, strict=True):
            dead = max(0, start - group.window + 1) // BLOCK_TOKENS if group.kind == "window" else 0
            used = -(-end // BLOCK_TOKENS)
            out.append(pack_ids([GONE if i < dead else n - 1 - i for i in range(used)]))
        return tuple(out)


def _spans(n: int, chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = step = 0
    while start < n:
        end = min(n, start + chunks[min(step, len(chunks) - 1)])
        yield start, end
        start, step = end, step + 1
