"""What to choose for a goal: a type of weights, a KV type, settings; and what to do when it does not fit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spola.core.errors import SpolaError
from spola.core.runner import KvGroup
from spola.planner.model import PlanModel, with_weights
from spola.planner.plan import Goal, Plan, make_plan
from spola.runtime.machine import describe_bytes
from spola.spec.kv import kv_groups
from spola.spec.weight_types import WEIGHT_TYPES

__all__ = ["recommend", "refusal", "serve_command", "ways_out"]

# Best quality first.
LADDER = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
INT8 = "int8"
KEPT = "Q4_K"  # the smallest type that is recommended without a warning


def recommend(plan: Plan, precise: bool = False) -> dict[str, Any]:
    """The best weights and KV types that meet the goal, what each type would give, and the command to type.

    Weights first: an int8 cache costs less than the next smaller type of weights (docs/accuracy.md), so it is
    tried before that. A model that is stored in fewer bits is not planned with more.
    """
    rows = []
    stored = plan.figures["bits_per_weight"]
    smaller = _planned(plan, None, precise, INT8) if _larger_kv(plan) else None
    as_int8 = smaller is not None and bool(smaller.figures["fits"])
    for kind in LADDER:
        other = _planned(plan, kind, precise)
        if other is None or other.figures["bits_per_weight"] > stored * 1.05:
            continue
        f = other.figures
        rows.append(
            {
                "weights": kind,
                "weights_bytes": f["weights_bytes"],
                "fits": f["fits"],
                "fits_int8_kv": f["fits"] or _fits_int8(plan, kind, precise),
                "max_concurrency": f["max_concurrency"],
                "decode_tok_s": f.get("decode_tok_s") or f["decode_tok_s_bound"],
            }
        )
    fitting = [row for row in rows if row["fits_int8_kv"]]
    as_stored = plan.figures["fits"] or as_int8
    kinds = kv_kinds(plan.groups)
    choice = None
    if as_stored:
        choice, kinds = "as stored", kinds if plan.figures["fits"] else INT8
    elif fitting:
        choice, kinds = fitting[0]["weights"], kinds if fitting[0]["fits"] else INT8
    out: dict[str, Any] = {"weights": choice, "kv_dtype": None if choice is None else kinds, "types": rows}
    if choice is not None and choice not in ("as stored", *LADDER[: LADDER.index(KEPT) + 1]):
        out["warning"] = f"below {KEPT} answers get clearly worse: a smaller model in {KEPT} may be better"
    if as_stored:
        fit = plan if smaller is None or plan.figures["fits"] else smaller
        command = serve_command(fit, precise)
        if command is not None:
            out["command"] = command
    return out


def kv_kinds(groups: Sequence[KvGroup]) -> str:
    """The types of K and V as ``--kv-dtype`` takes them."""
    return ",".join(dict.fromkeys((groups[0].k_dtype, groups[0].v_dtype)))


def _larger_kv(plan: Plan) -> bool:
    return any(kind != INT8 for group in plan.groups for kind in (group.k_dtype, group.v_dtype))


def _fits_int8(plan: Plan, kind: str, precise: bool) -> bool:
    other = _planned(plan, kind, precise, INT8) if _larger_kv(plan) else None
    return other is not None and bool(other.figures["fits"])


def _planned(plan: Plan, kind: str | None, precise: bool, kv: str | None = None) -> Plan | None:
    """The plan with weights in ``kind`` and a cache in ``kv``; None: as they are planned."""
    model: PlanModel = plan.model if kind is None else with_weights(plan.model, kind)
    groups, host = plan.groups, plan.host
    goal = Goal(context=plan.figures["context"], concurrency=plan.goal.concurrency)
    try:
        if kv is not None:
            groups = kv_groups(model.spec, kv, kv)
        if host.speed is not None:
            host = replace(host, speed=host.speed.of(model.dtypes, groups))
        return make_plan(model, groups, host, goal, precise=precise)
    except SpolaError:
        return None


def serve_command(plan: Plan, precise: bool = False) -> str | None:
    """``spola serve`` with the settings of the plan; None for weights that it cannot make while loading."""
    figures, model, kinds = plan.figures, plan.model, kv_kinds(plan.groups)
    weights = ""
    if model.weights is not None:
        if model.weights not in WEIGHT_TYPES.values() or not model.from_floats:
            return None
        weights = f" --weights {model.weights.lower()}"
    return (
        f"spola serve -m {shlex.quote(model.asked)}{weights} --max-model-len {figures['context']} "
        f"--max-seqs {figures['concurrency']} --kv-memory {plan.memory.kv}"
        f"{'' if kinds == 'f16' else f' --kv-dtype {kinds}'}{' --precise' if precise else ''}"
    )


def ways_out(plan: Plan) -> list[str]:
    """Three things to change so that the goal fits, each with its number."""
    figures, memory = plan.figures, plan.memory
    ways = []
    if figures["max_context"]:
        ways.append(f"--context {figures['max_context']} for {figures['concurrency']} at a time")
    if figures["max_concurrency"]:
        ways.append(f"--concurrency {figures['max_concurrency']} at {figures['context']} tokens")
    smaller = _planned(plan, None, False, INT8) if _larger_kv(plan) else None
    if smaller is not None and smaller.figures["fits"]:
        size = describe_bytes(smaller.memory.kv)
        ways.insert(0, f"--kv-dtype int8 (a KV cache of {size})")
    types = recommend(plan)["types"]
    for row in types:
        if row["fits"]:
            ways.append(f"weights in {row['weights']} ({describe_bytes(row['weights_bytes'])})")
            break
    else:
        ways += _both_smaller(plan, types)
    least = memory.total - memory.kv + figures["kv_bytes_per_request"]
    if least < memory.total and len(ways) < 2:
        ways.append(f"{describe_bytes(least)} for one request of {figures['context']} tokens")
    ways.append(f"{describe_bytes(memory.peak)} of memory")
    room = (plan.host.memory or 0) - memory.workspace - memory.host
    if room > 0:
        parameters = room / (figures["bits_per_weight"] / 8) / 2
        ways.append(f"a model of at most {parameters / 1e6:,.0f} M parameters (half is for the KV cache)")
    else:
        ways.append("no smaller model either: the process alone takes more")
    return ways[:3]


def _both_smaller(plan: Plan, types: Sequence[Mapping[str, Any]]) -> list[str]:
    """The largest weights that fit together with a shorter context and an int8 cache, if any do."""
    for row in types:
        other = _planned(plan, row["weights"], False, INT8)
        context = 0 if other is None else other.figures["max_context"]
        if context:
            return [f"weights in {row['weights']} with --kv-dtype int8 and --context {context}"]
    return []


def refusal(plan: Plan) -> str:
    """One line: the numbers, and what would fit."""
    figures: Mapping[str, Any] = plan.figures
    memory = plan.memory
    loading = ""
    if memory.peak > memory.total:
        loading = f" ({describe_bytes(memory.peak)} while it is loaded)"
    return (
        f"{plan.model.name} with {figures['concurrency']} x {figures['context']} tokens needs "
        f"{describe_bytes(memory.total)}{loading}: weights {describe_bytes(memory.weights)}, KV cache "
        f"{describe_bytes(memory.kv)}, the rest {describe_bytes(memory.workspace + memory.host)}; "
        f"{describe_bytes(plan.host.memory or 0)} may be used ({plan.host.memory_reason}). "
        f"Would fit: {'; or '.join(ways_out(plan))}"
    )
