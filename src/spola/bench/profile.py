"""Where the time of prefill and decode goes: seconds of each operation beside its bytes and multiply-adds.

The native decoder times its ops; bytes and multiply-adds are counted from the spec. An operation's share of
the roofline is the time that this machine's memory and arithmetic would need at least, over what it took.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from spola.bench.offline import Offline, Watched
from spola.core.dtype import BY_NAME, nbytes
from spola.core.errors import ConfigError
from spola.core.step import Step
from spola.engine.report import StepReport
from spola.runtime.limits import MachineLimits
from spola.runtime.loaded import Loaded
from spola.runtime.roofline import activation_format
from spola.spec.cost import (
    attention_flops,
    ends_with_kv,
    kv_bytes_per_token,
    kv_read_bytes,
    streamed_weight_bytes,
)
from spola.spec.decoder import MoeMlp
from spola.spec.manifest import TensorInfo, manifest

__all__ = ["Watch", "profile"]

# Kinds of native ops between the matrices, in words.
_WORDS = {
    "embed": "embedding rows",
    "prepare": "norm and quantize",
    "adapter": "adapters",
    "rope_kv": "rope and KV write",
    "attention": "attention",
    "merge": "merge of attention",
    "residual": "residual and norm",
    "route": "routing of experts",
    "group": "grouping by expert",
    "combine": "sum of experts",
    "sample": "sampling",
}


@dataclass(slots=True)
class Watch:
    """An Observer that keeps the reports of steps while ``on``."""

    on: bool = False
    reports: list[StepReport] = field(default_factory=list)

    def step(self, report: StepReport) -> None:
        if self.on:
            self.reports.append(report)

    def close(self) -> None:
        pass


def profile(
    loaded: Loaded, limits: MachineLimits, *, prompt: int, tokens: int, batch: int, repeat: int = 3
) -> dict[str, Any]:
    """The document of ``spola profile``: a prompt of ``prompt`` tokens, and ``tokens`` steps of ``batch``
    requests after such prompts; the median of ``repeat`` runs each.

    Raises ConfigError for a backend that does not time its operations.
    """
    runner: Any = loaded.engine.runner
    if not hasattr(runner, "time_ops"):
        raise ConfigError(f"backend {loaded.config.backend} does not time its operations: use native")
    # Every matrix is read again in each step: at the memory's rate, or at that of the caches they fit into.
    weights = streamed_weight_bytes(loaded.spec, loaded.dtypes)
    limits = replace(limits, read=limits.read_of(weights))
    watch = Watch()
    loaded.engine.observers.append(watch)
    offline = Offline(loaded, limits)
    offline.prefill(prompt)  # warms up
    runs: dict[str, Callable[[Watched], float]] = {
        "prefill": lambda watched: offline.prefill(prompt, watched),
        "decode": lambda watched: math.fsum(offline.decode(batch, prompt, tokens, watched)),
    }
    phases = {name: _phase(loaded, limits, watch, run, repeat) for name, run in runs.items()}
    return {
        "model": loaded.config.model,
        "threads": loaded.config.threads,
        "isa": runner.isa,
        "machine": limits.as_json(),
        "prompt": prompt,
        "tokens": tokens,
        "batch": batch,
        "phases": phases,
    }


def _phase(
    loaded: Loaded, limits: MachineLimits, watch: Watch, run: Callable[[Watched], float], repeat: int
) -> dict[str, Any]:
    """Run ``repeat`` times; operations and steps of the median run."""
    runner: Any = loaded.engine.runner
    found: list[tuple[float, list[Any], list[StepReport]]] = []

    @contextmanager
    def watched() -> Iterator[None]:
        watch.reports.clear()
        watch.on = True
        runner.time_ops(True)
        yield
        watch.on = False
        found.append((0.0, runner.op_times(), list(watch.reports)))
        runner.time_ops(False)

    for _ in range(repeat):
        seconds = run(watched)
        found[-1] = (seconds, *found[-1][1:])
    total = statistics.median_low([seconds for seconds, _, _ in found])
    _, times, reports = next(entry for entry in found if entry[0] == total)
    work = [report.step for report in reports if report.step is not None]
    rows = _operations(loaded, limits, times, work)
    outside = max(0.0, total - math.fsum(row["seconds"] for row in rows))
    rows.append(
        {"operation": "Python and the call", "seconds": outside, "bytes": 0, "macs": 0, "roofline": None}
    )
    for row in rows:
        row["share"] = row["seconds"] / total
    rows.sort(key=lambda row: -float(row["seconds"]))
    tokens = sum(step.n_rows for step in work)
    return {
        "seconds": total,
        "steps": len(work),
        "tokens": tokens,
        "tok_s": tokens / total,
        "operations": rows,
        "timeline": [_drawn(report, reports[0].start_s) for report in reports if report.step is not None],
    }


def _drawn(report: StepReport, zero: float) -> dict[str, Any]:
    assert report.step is not None
    slices = [
        {"request": p.id, "position": p.start, "rows": p.n, "phase": "decode" if p.n == 1 else "prefill"}
        for p in report.step.slices
    ]
    return {"start_s": report.start_s - zero, "elapsed_s": report.elapsed_s, "slices": slices}


def _operations(
    loaded: Loaded,
    limits: MachineLimits,
    times: Sequence[tuple[str, tuple[str, ...], float]],
    work: Sequence[Step],
) -> list[dict[str, Any]]:
    """One row for each kind of operation over all layers."""
    infos = {info.name: info for info in manifest(loaded.spec)}
    rows_of = sum(step.n_rows for step in work)
    heads_of = sum(piece.n_head for step in work for piece in step.slices)
    with_heads = sum(any(piece.n_head for piece in step.slices) for step in work)
    table: dict[str, dict[str, Any]] = {}
    for kind, matrices, seconds in times:
        if kind in ("linear", "experts", "head"):
            name = "head: logits" if kind == "head" else "matrix " + " + ".join(map(_short, matrices))
        else:
            name = _WORDS.get(kind, kind)
        row = table.setdefault(name, {"operation": name, "seconds": 0.0, "bytes": 0, "macs": 0, "least": 0.0})
        row["seconds"] += seconds
        for matrix in matrices if kind != "embed" else ():
            ends = kind == "head" or ends_with_kv(loaded.spec, matrix)
            through, steps = (heads_of, with_heads) if ends else (rows_of, len(work))
            size, macs = _matrix(loaded, infos[matrix], through, steps)
            row["bytes"] += size
            row["macs"] += macs
            form = activation_format(loaded.dtypes[matrix], loaded.config.precise)
            row["least"] += max(size / limits.read, macs / limits.peak[form])
    _attention(loaded, limits, table.get("attention"), work)
    _kv_write(loaded, limits, table.get("rope and KV write"), rows_of)
    out = []
    for row in table.values():
        least = row.pop("least")
        if row["seconds"] > 0:
            out.append(row | {"roofline": least / row["seconds"] if least else None})
    return out


def _short(name: str) -> str:
    """layers.3.mlp.gate.weight -> mlp.gate."""
    parts = name.removesuffix(".weight").split(".")
    return ".".join(parts[2:] if parts[0] == "layers" else parts)


def _matrix(loaded: Loaded, info: TensorInfo, rows: int, steps: int) -> tuple[int, int]:
    """Bytes read and multiply-adds of one matrix over ``steps`` steps of ``rows`` rows in all."""
    size = math.prod(info.shape)
    stored = _bytes(loaded.dtypes, info)
    if info.role != "experts":
        return stored * steps, size * rows
    mlp = loaded.spec.layers[int(info.name.split(".")[1])].mlp
    assert isinstance(mlp, MoeMlp)
    touched = min(1.0, mlp.used * rows / max(steps, 1) / info.shape[0])
    return int(stored * steps * touched), size // info.shape[0] * mlp.used * rows


def _bytes(dtypes: Mapping[str, str], info: TensorInfo) -> int:
    return nbytes(BY_NAME[dtypes[info.name]], math.prod(info.shape))


def _attention(
    loaded: Loaded, limits: MachineLimits, row: dict[str, Any] | None, work: Sequence[Step]
) -> None:
    if row is None:
        return
    for step in work:
        for piece in step.slices:
            row["bytes"] += kv_read_bytes(loaded.config.kv_groups, piece.start + piece.n)
            row["macs"] += attention_flops(loaded.spec, piece.n, piece.start, piece.n_head) // 2
    row["least"] = max(row["bytes"] / limits.read, row["macs"] / limits.peak["f32"])


def _kv_write(loaded: Loaded, limits: MachineLimits, row: dict[str, Any] | None, rows: int) -> None:
    if row is not None:
        row["bytes"] += rows * kv_bytes_per_token(loaded.config.kv_groups)
        row["least"] = row["bytes"] / limits.read
