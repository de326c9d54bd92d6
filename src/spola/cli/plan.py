"""``spola plan``: what fits and how fast it can be, from a model's header alone."""

from __future__ import annotations

from typing import Any

import click

from spola.cli.options import (
    as_usage,
    itl_target_option,
    kv_dtype_option,
    mix_options,
    precise_option,
    threads_option,
)
from spola.cli.output import emit_json, json_option, note
from spola.core.errors import CapacityError
from spola.core.runner import BLOCK_TOKENS
from spola.planner.explain import explained, summary
from spola.planner.hardware import HARDWARE
from spola.planner.host import table_host, this_host
from spola.planner.model import open_plan_model
from spola.planner.plan import Goal, Plan, make_plan
from spola.planner.recommend import recommend, refusal
from spola.planner.simulate import LOOP_S, Settings, simulate
from spola.runtime.config import DEFAULT_STEP_TOKENS, parse_bytes, parse_kv_dtype
from spola.runtime.fit import Layout, widest_step
from spola.spec.kv import kv_groups
from spola.workload import mix

__all__ = ["command"]

_COUNT = click.IntRange(1)
_MOST = 32  # requests at a time of a server, unless told otherwise


@click.command("plan", epilog="Example: spola plan model.gguf --context 8192 --concurrency 4 --explain")
@click.argument("model", required=False)
@click.option("--context", type=_COUNT, metavar="N", help="Tokens of each request; default: 4096 or fewer.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65536),
    help="Requests at a time; default: 1, or with --rate as many as fit, up to 32.",
)
@click.option(
    "--hardware",
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"auto measures this machine; or one of {', '.join(row.name for row in HARDWARE)}.",
)
@click.option("--memory", metavar="BYTES", help="Memory of the machine, as 16G, instead of what it has.")
@click.option("--weights", metavar="T", help="Plan with weights of this type instead of the stored ones.")
@kv_dtype_option
@threads_option
@precise_option
@click.option("--measure", is_flag=True, help="Measure the machine anew instead of using kept figures.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second.")
@click.option("--prompt", type=_COUNT, metavar="N", help="Tokens of a prompt.")
@click.option("--output", type=_COUNT, metavar="N", help="Tokens of an answer.")
@click.option("--cost-per-hour", type=click.FloatRange(0), metavar="X", help="Price of the machine's hour.")
@click.option(
    "--simulate", "simulated", is_flag=True, help="Run a workload in virtual time: its percentiles."
)
@click.option("--requests", default=200, show_default=True, type=_COUNT, help="Requests to simulate.")
@mix_options
@itl_target_option
@click.option("--explain", is_flag=True, help="Every formula with its numbers filled in.")
@json_option
def command(model: str | None, explain: bool, simulated: bool, as_json: bool, **given: Any) -> int:
    """What MODEL needs and how fast it can be; reads no weights.

    MODEL is a GGUF file, a Hugging Face folder (its config.json is enough), or org/name on the hub, of which
    config.json is fetched. What cannot fit exits 1, with the numbers and what would fit.
    """
    plan = plan_of(model, given)
    advice = recommend(plan, given["precise"])
    result = _simulate(plan, given) if simulated and plan.figures["fits"] else None
    if as_json:
        more = {} if result is None else {"simulation": result}
        emit_json(plan.figures | {"recommended": advice} | more)
    else:
        for line in summary(plan):
            click.echo(line)
        if explain:
            click.echo()
            for line in explained(plan):
                click.echo(line)
        _advise(advice, plan.figures["fits"])
        if result is not None:
            _show(result)
    if not plan.figures["fits"]:
        raise CapacityError(refusal(plan))
    return 0


def plan_of(name: str | None, given: dict[str, Any]) -> Plan:
    """The plan that the options describe."""
    memory = given["memory"]
    with as_usage():
        size = None if memory is None else parse_bytes(memory, "--memory")
        kinds = parse_kv_dtype(given["kv_dtype"])
    model = open_plan_model(name, given["weights"])
    with as_usage():
        groups = kv_groups(model.spec, *kinds)
    if given["hardware"] == "auto":
        host = this_host(
            model,
            groups,
            threads=given["threads"],
            precise=given["precise"],
            fresh=given["measure"],
            memory=size,
            say=note,
        )
    else:
        for option in ("threads", "measure", "precise"):
            if given[option]:
                raise click.UsageError(f"--{option} is of this machine: it needs --hardware auto")
        with as_usage():
            host = table_host(given["hardware"], size)
    wanted = ("context", "concurrency", "rate", "prompt", "output", "cost_per_hour")
    if given["concurrency"] is None:
        given = given | {"concurrency": _MOST if given["rate"] is not None else 1}
        goal = Goal(**{key: given[key] for key in wanted})
        fitting = make_plan(model, groups, host, goal, precise=given["precise"]).figures["max_concurrency"]
        given = given | {"concurrency": max(1, min(given["concurrency"], fitting or _MOST))}
    goal = Goal(**{key: given[key] for key in wanted})
    return make_plan(model, groups, host, goal, precise=given["precise"])


def _simulate(plan: Plan, given: dict[str, Any]) -> dict[str, Any]:
    if plan.host.speed is None:
        raise click.UsageError("--simulate needs --hardware auto: other machines have bounds only")
    prompt, output = given["prompt"] or 512, given["output"] or 128
    names = ("seed", "spread", "shared", "groups")
    with as_usage():
        mixed = mix(
            given["dataset"],
            given["requests"],
            prompt=prompt,
            output=output,
            **{name: given[name] for name in names},
        )
    context, seqs = plan.figures["context"], plan.figures["concurrency"]
    layout = Layout(plan.groups, BLOCK_TOKENS, seqs, DEFAULT_STEP_TOKENS)
    settings = Settings(
        kv_blocks=layout.split(seqs * layout.blocks_of(context)),
        max_seqs=seqs,
        max_model_len=context,
        max_step_tokens=widest_step(max(DEFAULT_STEP_TOKENS, seqs), seqs, context),
        itl_target_s=given["itl_target"] / 1e3,
    )
    load = {"rate": given["rate"], "concurrency": None if given["rate"] is not None else seqs}
    threads, machine = plan.host.speed.threads, plan.host.machine
    shared = machine is not None and threads >= machine.cpus  # no processor is left for the event loop
    token_s = LOOP_S if shared else 0.0
    result = simulate(
        plan.host.speed, plan.groups, settings, mixed, seed=given["seed"], token_s=token_s, **load
    )
    arrivals = f"{given['rate']:g} per second" if given["rate"] is not None else f"{seqs} clients"
    return {"arrivals": arrivals, "dataset": mixed.about, "max_seqs": seqs} | result


def _show(result: dict[str, Any]) -> None:
    click.echo(
        f"simulated      {result['requests']} requests, {result['arrivals']}, {result['dataset']}: "
        f"{result['output_tok_s']:.4g} output tok/s, {result['mean_concurrency']:.1f} at a time, "
        f"busy {result['busy']:.0%}"
    )
    for name in ("ttft", "tpot", "itl", "latency"):
        row = result[f"{name}_ms"]
        shown = "   ".join(f"{key} {row[key]:.1f}" for key in ("p50", "p95", "p99") if row[key] is not None)
        click.echo(f"  {name:<12} {shown} ms")


def _advise(advice: dict[str, Any], fits: bool) -> None:
    if advice["weights"] is None:
        return
    kv = f"a KV cache in {advice['kv_dtype']}"
    if advice["weights"] != "as stored":
        click.echo(f"recommended    weights in {advice['weights']}, {kv}")
    elif not fits:
        click.echo(f"recommended    weights as stored, {kv}")
    if "warning" in advice:
        click.echo(f"               {advice['warning']}")
    if "command" in advice:
        click.echo(f"to serve it    {advice['command']}")
