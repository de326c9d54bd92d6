"""The plan in words: a table for a terminal, and every formula with its numbers filled in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spola.core.runner import KV_GROUP, KvGroup, kv_row_bytes
from spola.planner.plan import Plan
from spola.runtime.contention import is_quiet
from spola.runtime.machine import describe_bytes

__all__ = ["explained", "summary"]


def summary(plan: Plan) -> Iterator[str]:
    """A dozen lines: what fits, how fast it can be."""
    f = plan.figures
    size = f"{f['parameters'] / 1e6:.4g} M parameters"
    yield f"{f['model']} ({f['architecture']}, {size}), from {f['origin']}"
    yield f"on {f['hardware']}"
    if f["others"] is not None and not is_quiet(f["others"]):
        yield (
            f"               other work took {f['others']:.1f} processors while the machine was measured: "
            "speeds may be higher than this"
        )
    memory = plan.memory
    bits = f"{f['bits_per_weight']:.2f} bits per weight"
    yield f"weights        {describe_bytes(memory.weights):>10}   {bits}"
    yield (
        f"KV cache       {describe_bytes(memory.kv):>10}   {f['concurrency']} x {f['context']} tokens, "
        f"{f['kv_bytes_per_token']} bytes each"
    )
    yield f"workspace      {describe_bytes(memory.workspace):>10}   activations and logits of a step"
    if memory.host:
        what = "interpreter, libraries, tokenizer (estimate)"
        yield f"process        {describe_bytes(memory.host):>10}   {what}"
    yield f"in all         {describe_bytes(memory.total):>10}   {_fits(plan)}"
    if memory.peak > memory.total:
        what = "more than that in all: a tensor lies beside what it is packed into"
        yield f"while loading  {describe_bytes(memory.peak):>10}   {what}"
    if f["max_concurrency"] is not None:
        yield (
            f"at most        {f['max_concurrency']} requests of {f['context']} tokens, or {f['max_context']} "
            f"tokens for each of {f['concurrency']} (trained for {f['trained_context']})"
        )
    yield _speed("decode", f, f"{f['concurrency']} at a time, at {max(1, f['context'] // 2)} positions")
    yield _speed("prefill", f, f"a prompt of {f['prefill_tokens']}")
    if f["ridge"] is not None:
        batch = f["compute_bound_batch"]
        turns = f"compute-bound from {batch} at a time" if batch else "memory-bound at any batch"
        per_byte = f"{f['arithmetic_intensity']:.1f} operations per byte"
        yield f"intensity      {per_byte}, ridge {f['ridge']:.0f}: {turns}"
    yield from _load(f)
    if "cost" in f:
        cost = f["cost"]
        prompt = cost["per_million_prompt_tokens"]
        more = "" if prompt is None else f", {prompt:.3g} of prompt"
        yield f"cost           {cost['per_million_output_tokens']:.3g} per million tokens of output{more}"


def _fits(plan: Plan) -> str:
    if plan.host.memory is None:
        return "the memory of the machine is what is put in"
    verdict = "fits" if plan.figures["fits"] else "does NOT fit"
    return f"of {describe_bytes(plan.host.memory)} that may be used ({plan.host.memory_reason}): {verdict}"


def _speed(name: str, f: dict[str, Any], what: str) -> str:
    bound, said = f[f"{name}_tok_s_bound"], f.get(f"{name}_tok_s")
    if bound is None:
        return f"{name:<14} no bound: the peak of this hardware is not in the table"
    predicted = "" if said is None else f"{said:.4g} tok/s predicted, "
    return f"{name:<14} {predicted}{bound:.4g} tok/s bound ({what})"


def _load(f: dict[str, Any]) -> Iterator[str]:
    load = f.get("load")
    if load is None:
        return
    if load["ttft_s"] is None:
        yield "load           no prediction: the peak of this hardware is not in the table"
        return
    yield (
        f"one request    TTFT {_ms(load['ttft_s'])}, TPOT {_ms(load['tpot_s'])}, latency "
        f"{load['latency_s']:.2f} s ({load['prompt']} + {load['output']} tokens)"
    )
    yield f"at most        {load['max_request_s']:.3g} requests/s"
    if "rate" not in load:
        return
    if not load["stable"]:
        yield f"at {load['rate']:g}/s          more than it can do: the queue grows without end"
        return
    yield (
        f"at {load['rate']:g}/s".ljust(15) + f"TTFT {_ms(load['ttft_s_at_rate'])}, TPOT "
        f"{_ms(load['tpot_s_at_rate'])}, {load['decoding']:.1f} in decode, {load['output_tok_s']:.4g} tok/s"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def explained(plan: Plan) -> Iterator[str]:
    """Every formula of the plan with its numbers."""
    f, memory = plan.figures, plan.memory
    n, bits = f["parameters"], f["bits_per_weight"]
    yield "weights = parameters x bits / 8"
    yield f"        = {n:,} x {bits:.3f} / 8 = {f['weights_stored_bytes']:,} bytes as stored"
    if memory.weights != f["weights_stored_bytes"]:
        yield f"          packed for this processor, with tables of positions: {memory.weights:,} bytes"
    for group in plan.groups:
        yield from _group(group, plan.groups)
    yield "KV of a request = bytes per token x tokens, in whole blocks of 32; a window keeps its width only"
    yield f"                = {f['kv_bytes_per_request']:,} bytes at {f['context']} tokens"
    yield "requests that fit = (memory - weights - workspace - process) / KV of a request"
    if f["kv_memory_bytes"] is not None:
        yield (
            f"                  = ({plan.host.memory:,} - {memory.weights:,} - {memory.workspace:,} - "
            f"{memory.host:,}) / {f['kv_bytes_per_request']:,} = {f['max_concurrency']}"
        )
    moved, read, batch = f["decode_bytes_per_step"], f["read_bytes_per_s"], f["concurrency"]
    yield "decode bound = batch x bandwidth / (weights read + KV read), unless arithmetic is slower"
    yield f"             = {batch} x {read:.4g} / {moved:,} = {batch * read / moved:.4g} tok/s from memory"
    parts = f.get("decode_step_parts")
    if parts is not None:
        yield "decode predicted = batch / the step's parts, which were timed on a sample with random weights"
        sum_of = " + ".join(f"{name} {_ms(seconds)}" for name, seconds in parts.items())
        yield f"                 = {batch} / ({sum_of}) = {f['decode_tok_s']:.4g} tok/s"
    peak = f["peak_flops_per_s"]
    if peak:
        flops = f["decode_flops_per_step"]
        compute = batch * peak / flops
        yield f"               {batch} x {peak:.4g} / {flops:,} = {compute:.4g} tok/s from arithmetic"
        yield "prefill bound = tokens x peak / FLOPs, FLOPs = 2 x matrix parameters x tokens + attention,"
        yield "                of the last layer K and V only, but for the last token"
        yield (
            f"              = {f['prefill_tokens']} x {peak:.4g} / {f['prefill_flops']:,} = "
            f"{f['prefill_tokens'] * peak / f['prefill_flops']:.4g} tok/s"
        )
        yield "arithmetic intensity = FLOPs / bytes of a decode step; ridge = peak / bandwidth"
        yield (
            f"                     = {flops:,} / {moved:,} = {f['arithmetic_intensity']:.2f}; "
            f"{peak:.4g} / {read:.4g} = {f['ridge']:.1f}"
        )
        yield (
            "decode turns compute-bound where batch x FLOPs / peak >= (weights + batch x KV) / bandwidth: "
            f"batch {f['compute_bound_batch'] or 'never'}"
        )
    yield from _explained_load(f)


def _group(group: KvGroup, groups: Sequence[KvGroup]) -> Iterator[str]:
    layers = len(group.layers)
    k, v = kv_row_bytes(group.k_dtype, group.k_dim), group.v_row_bytes
    if group.kind == "latent":
        yield "KV per token = layers x bytes of a latent, which is K and V of all heads"
        row = _row(group.k_dtype, group.k_dim)
        yield f"             = {layers} x {row} = {layers} x {k} = {group.bytes_per_token:,} bytes"
        return
    kind = f", window of {group.window}" if group.kind == "window" else ""
    yield f"KV per token = layers x KV heads x (bytes of a K + bytes of a V){kind}"
    yield (
        f"             = {layers} x {group.heads} x ({_row(group.k_dtype, group.k_dim)} + "
        f"{_row(group.v_dtype, group.v_dim)}) = {layers} x {group.heads} x ({k} + {v}) = "
        f"{group.bytes_per_token:,} bytes"
    )
    if len(groups) > 1 and group is groups[-1]:
        yield f"               in all {sum(g.bytes_per_token for g in groups):,} bytes"


def _row(dtype: str, dim: int) -> str:
    """Bytes of ``dim`` values in words: int8 has an f16 scale for every 32."""
    if dtype == "int8":
        return f"{dim} x 1 + {-(-dim // KV_GROUP)} scales x 2"
    return f"{dim} x {kv_row_bytes(dtype, 1)}"


def _explained_load(f: dict[str, Any]) -> Iterator[str]:
    load = f.get("load")
    if load is None or load["ttft_s"] is None:
        return
    yield "latency = TTFT + TPOT x (output tokens - 1)"
    yield (
        f"        = {load['ttft_s']:.4f} + {load['tpot_s']:.5f} x {load['output'] - 1} = "
        f"{load['latency_s']:.3f} s"
    )
    if load.get("stable"):
        yield "requests in decode = rate x output x TPOT (Little's law); TPOT = step / (1 - prefill share)"
        yield (
            f"                   = {load['rate']:g} x {load['output']} x {load['tpot_s_at_rate']:.5f} = "
            f"{load['decoding']:.2f}; prefill share = rate x prefill time = {load['prefill_share']:.2f}"
        )
