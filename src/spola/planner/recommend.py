"""What to choose for a goal: a type of weights, a KV type, settings; and what to do when it does not fit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spola.core.errors import SpolaError
from spola.planner.model import PlanModel, with_weights
from spola.planner.plan import Goal, Plan, make_plan
from spola.runtime.machine import describe_bytes

__all__ = ["recommend", "refusal", "serve_command", "ways_out"]

# Best quality first.
LADDER = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
KEPT = "Q4_K"  # the smallest type that is recommended without a warning


def recommend(plan: Plan, precise: bool = False) -> dict[str, Any]:
    """The largest type of weights that meets the goal, what each type would give, and the command to type.

    A model that is stored in fewer bits is not planned with more.
    """
    rows = []
    stored = plan.figures["bits_per_weight"]
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
                "max_concurrency": f["max_concurrency"],
                "decode_tok_s": f.get("decode_tok_s") or f["decode_tok_s_bound"],
            }
        )
    fitting = [row["weights"] for row in rows if row["fits"]]
    as_stored = plan.figures["fits"]
    choice = "as stored" if as_stored else fitting[0] if fitting else None
    out: dict[str, Any] = {"weights": choice, "types": rows}
    if choice is not None and choice not in ("as stored", *LADDER[: LADDER.index(KEPT) + 1]):
        out["warning"] = f"below {KEPT} answers get clearly worse: a smaller model in {KEPT} may be better"
    if as_stored:
        out["command"] = serve_command(plan)
    return out


def _planned(plan: Plan, kind: str, precise: bool) -> Plan | None:
    model: PlanModel = with_weights(plan.model, kind)
    host = plan.host
    if host.speed is not None:
        host = replace(host, speed=replace(host.speed, dtypes=model.dtypes))
    goal = Goal(context=plan.figures["context"], concurrency=plan.goal.concurrency)
    try:
        return make_plan(model, plan.groups, host, goal, precise=precise)
    except SpolaError:
        return None


def serve_command(plan: Plan) -> str:
    """``spola serve`` with the settings of the plan."""
    figures = plan.figures
    return (
        f"spola serve -m {shlex.quote(plan.model.asked)} --max-model-len {figures['context']} "
        f"--max-seqs {figures['concurrency']} --kv-memory {plan.memory.kv}"
    )


def ways_out(plan: Plan) -> list[str]:
    """Three things to change so that the goal fits, each with its number."""
    figures, memory = plan.figures, plan.memory
    ways = []
    if figures["max_context"]:
        ways.append(f"--context {figures['max_context']} for {figures['concurrency']} at a time")
    if figures["max_concurrency"]:
        ways.append(f"--concurrency {figures['max_concurrency']} at {figures['context']} tokens")
    for row in recommend(plan)["types"]:
        if row["fits"]:
            ways.append(f"weights in {row['weights']} ({describe_bytes(row['weights_bytes'])})")
            break
    least = memory.total - memory.kv + figures["kv_bytes_per_request"]
    if least < memory.total and len(ways) < 2:
        ways.append(f"{describe_bytes(least)} for one request of {figures['context']} tokens")
    ways.append(f"{describe_bytes(memory.total)} of memory")
    room = (plan.host.memory or 0) - memory.workspace - memory.host
    if room > 0:
        parameters = room / (figures["bits_per_weight"] / 8) / 2
        ways.append(f"a model of at most {parameters / 1e6:.3g} M parameters (half is for the KV cache)")
    else:
        ways.append("no smaller model either: the process alone takes more")
    return ways[:3]


def refusal(plan: Plan) -> str:
    """One line: the numbers, and what would fit."""
    figures: Mapping[str, Any] = plan.figures
    memory = plan.memory
    return (
        f"{plan.model.name} with {figures['concurrency']} x {figures['context']} tokens needs "
        f"{describe_bytes(memory.total)}: weights {describe_bytes(memory.weights)}, KV cache "
        f"{describe_bytes(memory.kv)}, the rest {describe_bytes(memory.workspace + memory.host)}; "
        f"{describe_bytes(plan.host.memory or 0)} may be used ({plan.host.memory_reason}). "
        f"Would fit: {'; or '.join(ways_out(plan))}"
    )
