"""The plan of a model on a machine: what fits, how fast it can be, what a load will see.

Everything is arithmetic over the spec (``spec.cost``), the machine's figures and, on this machine, the same
decisions that ``spola serve`` makes (``runtime.fit``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from spola.backends.registry import backend
from spola.core.errors import ConfigError
from spola.core.runner import BLOCK_TOKENS, KvGroup, RunnerConfig
from spola.planner.hardware import Hardware
from spola.planner.model import PlanModel
from spola.planner.speed import Speed
from spola.runtime.fit import Layout, widest_step
from spola.runtime.limits import MachineLimits
from spola.runtime.machine import Machine
from spola.runtime.memory import INTERPRETER, MemoryPlan
from spola.runtime.roofline import Roofline
from spola.spec.cost import (
    decode_bytes,
    decode_flops,
    kv_bytes_per_token,
    kv_read_bytes,
    matmul_parameters,
    prefill_flops,
    streamed_weight_bytes,
    weight_bytes,
)
from spola.text.footprint import tokenizer_bytes

__all__ = ["Goal", "Host", "Plan", "make_plan", "memory_of"]

_STEP_TOKENS = 512
_PROMPT, _OUTPUT = 512, 128  # of a request, unless the goal says otherwise


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted: ``context`` tokens for each of ``concurrency`` requests; a load of ``rate`` requests a
    second with ``prompt`` and ``output`` tokens; the price of the machine's hour.
    """

    context: int | None = None
    concurrency: int = 1
    rate: float | None = None
    prompt: int | None = None
    output: int | None = None
    cost_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine planned for: this one with its ``limits`` and a ``speed`` model, or ``hardware``."""

    name: str
    memory: int | None  # bytes that may be used; None: as much as is put in
    memory_reason: str
    threads: int = 1
    machine: Machine | None = None
    limits: MachineLimits | None = None
    speed: Speed | None = None
    hardware: Hardware | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """``figures`` is the JSON document of ``spola plan``; the rest is what it was made of."""

    figures: dict[str, Any]
    model: PlanModel
    host: Host
    goal: Goal
    groups: tuple[KvGroup, ...]
    memory: MemoryPlan


def make_plan(
    model: PlanModel, groups: tuple[KvGroup, ...], host: Host, goal: Goal, *, precise: bool = False
) -> Plan:
    """Plan ``model`` with a KV cache of ``groups`` on ``host``.

    Whether the goal fits is ``figures["fits"]``. Raises ConfigError for a context beyond the trained one.
    """
    spec = model.spec
    context = goal.context or min(spec.context, 4096)
    if context > spec.context:
        raise ConfigError(f"--context {context}: the model was trained for {spec.context} tokens")
    memory = memory_of(model, groups, host, goal.concurrency, context, precise)
    per_token = kv_bytes_per_token(groups)
    layout = Layout(groups, BLOCK_TOKENS, goal.concurrency, _STEP_TOKENS)
    request = Layout(groups, BLOCK_TOKENS, 1, _STEP_TOKENS)
    one = request.bytes(request.blocks_of(context))
    figures: dict[str, Any] = {
        "model": model.name,
        "origin": model.origin,
        "architecture": spec.arch,
        "hardware": host.name,
        "parameters": model.parameters,
        "weights_bytes": memory.weights,
        "weights_stored_bytes": weight_bytes(spec, model.dtypes),
        "bits_per_weight": 8 * weight_bytes(spec, model.dtypes) / model.parameters,
        "kv_bytes_per_token": per_token,
        "kv_bytes_per_request": one,
        "workspace_bytes": memory.workspace,
        "context": context,
        "concurrency": goal.concurrency,
        "trained_context": spec.context,
        "memory": msgspec.structs.asdict(memory) | {"total": memory.total, "peak": memory.peak},
        "usable_bytes": host.memory,
        "others": None if host.limits is None else host.limits.others,
    }
    figures |= _capacity(host, memory, layout, one, goal, context, spec.context)
    figures |= _speeds(model, groups, host, goal, context, precise)
    if goal.rate is not None or goal.prompt is not None or goal.output is not None:
        figures["load"] = _load(model, groups, host, goal, figures)
    if goal.cost_per_hour is not None:
        figures["cost"] = _cost(figures, goal.cost_per_hour)
    return Plan(figures, model, host, goal, groups, memory)


def memory_of(
    model: PlanModel, groups: tuple[KvGroup, ...], host: Host, concurrency: int, context: int, precise: bool
) -> MemoryPlan:
    """Memory of ``concurrency`` requests of ``context`` tokens; here, as the native backend takes it."""
    layout = Layout(groups, BLOCK_TOKENS, concurrency, _STEP_TOKENS)
    blocks = layout.split(concurrency * layout.blocks_of(context))
    kv = sum(n * group.bytes_per_block for n, group in zip(blocks, groups, strict=True))
    if host.machine is None:
        # 16-bit activations of a step: the residual stream, the widest inner layer, and logits of its heads.
        spec = model.spec
        workspace = 2 * _STEP_TOKENS * (4 * spec.hidden) + 4 * min(concurrency, 64) * spec.vocab
        return MemoryPlan(
            weights=weight_bytes(model.spec, model.dtypes), kv=kv, workspace=workspace, interpreter=0
        )
    config = RunnerConfig(
        kv_groups=groups,
        kv_blocks=blocks,
        max_step_tokens=widest_step(max(_STEP_TOKENS, concurrency), concurrency, context),
        max_seqs=concurrency,
        max_model_len=context,
        threads=host.threads,
        precise=precise,
    )
    native: Any = backend("native")
    taken = native.footprint(model.spec, model.dtypes, config)
    return MemoryPlan(
        weights=taken["weights"],
        kv=taken["kv"],
        workspace=taken["workspace"],
        interpreter=INTERPRETER,
        tokenizer=tokenizer_bytes(model.spec.vocab),
        loading=native.loading_bytes(model.spec, model.dtypes, precise=precise),
    )


def _capacity(
    host: Host, memory: MemoryPlan, layout: Layout, one: int, goal: Goal, context: int, trained: int
) -> dict[str, Any]:
    """How many requests of ``context`` fit, and how long requests can be; with the memory after all else."""
    if host.memory is None:
        return {"fits": True, "kv_memory_bytes": None, "max_concurrency": None, "max_context": trained}
    left = host.memory - memory.without_kv()
    if memory.host + memory.loading > host.memory:
        return {"fits": False, "kv_memory_bytes": left, "max_concurrency": 0, "max_context": 0}
    blocks = layout.most(max(left, 0), 1 << 24)
    longest = min(trained, blocks // goal.concurrency * BLOCK_TOKENS)
    return {
        "fits": memory.kv <= left,
        "kv_memory_bytes": left,
        "max_concurrency": max(left, 0) // one,
        "max_context": longest,
    }


def _speeds(
    model: PlanModel, groups: tuple[KvGroup, ...], host: Host, goal: Goal, context: int, precise: bool
) -> dict[str, Any]:
    """Bounds and, where a speed model is there, predictions; decode at half of the context."""
    spec, middle = model.spec, max(1, context // 2)
    prompt = min(goal.prompt or _PROMPT, spec.context)
    contexts = [middle] * goal.concurrency
    moved = decode_bytes(spec, model.dtypes, groups, contexts)
    flops = decode_flops(spec, contexts)
    out: dict[str, Any] = {
        "decode_bytes_per_step": moved,
        "decode_flops_per_step": flops,
        "arithmetic_intensity": flops / moved,
        "prefill_flops": prefill_flops(spec, prompt),
        "prefill_tokens": prompt,
    }
    if host.limits is not None:
        roofline = Roofline(spec, model.dtypes, groups, host.limits, precise)
        read = host.limits.read
        compute_1 = roofline.arithmetic(1, 1, 0)
        out |= {
            "decode_tok_s_bound": goal.concurrency / roofline.decode(contexts),
            "prefill_tok_s_bound": prompt / roofline.prefill(prompt, _STEP_TOKENS),
        }
        peak = 2 * (matmul_parameters(spec) + spec.hidden * spec.vocab) / compute_1
    else:
        assert host.hardware is not None
        read = host.hardware.read
        bits = 8 * weight_bytes(spec, model.dtypes) / model.parameters
        peak = host.hardware.peak(bits) or 0.0
        step = max(moved / read, flops / peak if peak else 0.0)
        out["decode_tok_s_bound"] = goal.concurrency / step
        out["prefill_tok_s_bound"] = (
            prompt / max(prefill_flops(spec, prompt) / peak, streamed_weight_bytes(spec, model.dtypes) / read)
            if peak
            else None
        )
    out |= {
        "read_bytes_per_s": read,
        "peak_flops_per_s": peak or None,
        "ridge": peak / read if peak else None,
        "compute_bound_batch": _turning_point(model, groups, middle, read, peak) if peak else None,
    }
    if host.speed is not None:
        out["decode_tok_s"] = goal.concurrency / host.speed.decode(goal.concurrency, middle)
        out["prefill_tok_s"] = prompt / host.speed.prefill(prompt, _STEP_TOKENS)
        trial = host.speed.trial
        slices = [(middle - 1, 1, 1)] * goal.concurrency
        out["decode_step_parts"] = None if trial is None else trial.parts(spec, slices)
    return out


def _turning_point(
    model: PlanModel, groups: tuple[KvGroup, ...], context: int, read: float, peak: float
) -> int | None:
    """The least batch at which a decode step computes for longer than it reads; None when it never does,
    because each request brings more bytes of KV cache than arithmetic.
    """
    spec = model.spec
    flops = decode_flops(spec, [context])
    kv = kv_read_bytes(groups, context)
    if flops / peak <= kv / read:
        return None
    low, high = 1, 1
    while _reads(model, kv, high) / read > high * flops / peak:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _reads(model, kv, middle) / read > middle * flops / peak:
            low = middle + 1
        else:
            high = middle
    return high


def _reads(model: PlanModel, kv: int, batch: int) -> int:
    return streamed_weight_bytes(model.spec, model.dtypes, batch) + batch * kv


def _load(
    model: PlanModel, groups: tuple[KvGroup, ...], host: Host, goal: Goal, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """What requests of one kind see: alone, at the planned concurrency, and at the rate by Little's law.

    At a rate, prompts take their part of the time and decodes get the rest; the batch is the fixed point at
    which requests leave as fast as they come.
    """
    prompt, output = goal.prompt or _PROMPT, goal.output or _OUTPUT
    if prompt + output > model.spec.context:
        raise ConfigError(f"--prompt {prompt} and --output {output} exceed the {model.spec.context} tokens")
    context = prompt + output // 2
    ttft, step = _times(host, model, groups, prompt, context)
    out: dict[str, Any] = {
        "prompt": prompt,
        "output": output,
        "ttft_s": ttft,
        "tpot_s": step(1),
        "latency_s": None if ttft is None else ttft + step(1) * (output - 1),
    }
    most = figures["max_concurrency"] or 256
    busy = min(most, max(goal.concurrency, 1))
    if ttft is None:
        return out
    # A request takes its prompt's time alone and its share of each of its steps.
    out["max_request_s"] = 1 / (ttft + output * step(most) / most) if most else 0.0
    out["concurrency_request_s"] = 1 / (ttft + output * step(busy) / busy) if busy else 0.0
    if goal.rate is not None:
        out |= _at_rate(goal.rate, ttft, step, output, most)
    return out


def _at_rate(rate: float, ttft: float, step: Any, output: int, most: int) -> dict[str, Any]:
    """Little's law: requests in decode = rate x output x TPOT, where prompts take part of the time."""
    share = rate * ttft  # of the time that prompts take
    if share >= 1:
        return {"rate": rate, "stable": False, "prefill_share": share}
    batch, tpot = 1.0, step(1)
    for _ in range(200):
        tpot = step(max(1, round(batch))) / (1 - share)
        wanted = rate * output * tpot
        if wanted > most:
            return {"rate": rate, "stable": False, "prefill_share": share, "decoding": wanted}
        if abs(wanted - batch) < 0.01:
            break
        batch = (batch + max(wanted, 1e-3)) / 2
    # A prompt waits for the step in flight and for the prompts in front of it (M/D/1).
    wait = tpot / 2 + share * ttft / (2 * (1 - share))
    return {
        "rate": rate,
        "stable": True,
        "prefill_share": share,
        "decoding": batch,
        "ttft_s_at_rate": ttft + wait,
        "tpot_s_at_rate": tpot,
        "latency_s_at_rate": ttft + wait + tpot * (output - 1),
        "output_tok_s": rate * output,
    }


def _times(
    host: Host, model: PlanModel, groups: tuple[KvGroup, ...], prompt: int, context: int
) -> tuple[float | None, Any]:
    """Seconds of a prompt alone, and a function from a batch to the seconds of its decode step."""
    if host.speed is not None:
        speed = host.speed
        return speed.prefill(prompt, _STEP_TOKENS), lambda batch: speed.decode(batch, context)
    hardware = host.hardware
    assert hardware is not None
    spec = model.spec
    peak = hardware.peak(8 * weight_bytes(spec, model.dtypes) / model.parameters)

    def step(batch: int) -> float:
        moved = decode_bytes(spec, model.dtypes, groups, [context] * batch) / hardware.read
        return max(moved, decode_flops(spec, [context] * batch) / peak) if peak else moved

    return (prefill_flops(spec, prompt) / peak + step(1) if peak else None), step


def _cost(figures: Mapping[str, Any], per_hour: float) -> dict[str, Any]:
    """Money for a million tokens of output, and of prompt, with the machine busy all the time."""
    decode = figures.get("decode_tok_s") or figures["decode_tok_s_bound"]
    prefill = figures.get("prefill_tok_s") or figures["prefill_tok_s_bound"]
    return {
        "per_hour": per_hour,
        "per_million_output_tokens": per_hour / 3600 / decode * 1e6,
        "per_million_prompt_tokens": None if prefill is None else per_hour / 3600 / prefill * 1e6,
    }
