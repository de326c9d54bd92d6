"""``spola plan``: what fits and how fast it can be, from a model's header alone."""

from __future__ import annotations

from typing import Any

import click

from spola.cli.options import as_usage
from spola.cli.output import emit_json, json_option
from spola.core.errors import CapacityError
from spola.planner.explain import explained, summary
from spola.planner.hardware import HARDWARE
from spola.planner.host import table_host, this_host
from spola.planner.model import open_plan_model
from spola.planner.plan import Goal, Plan, make_plan
from spola.planner.recommend import recommend, refusal
from spola.runtime.config import parse_bytes, parse_kv_dtype
from spola.spec.kv import kv_groups

__all__ = ["command"]

_COUNT = click.IntRange(1)


@click.command("plan", epilog="Example: spola plan model.gguf --context 8192 --concurrency 4 --explain")
@click.argument("model", required=False)
@click.option("--context", type=_COUNT, metavar="N", help="Tokens of each request; default: 4096 or fewer.")
@click.option("--concurrency", default=1, show_default=True, type=_COUNT, help="Requests at a time.")
@click.option(
    "--hardware",
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"auto measures this machine; or one of {', '.join(row.name for row in HARDWARE)}.",
)
@click.option("--memory", metavar="BYTES", help="Memory of the machine, as 16G, instead of what it has.")
@click.option("--weights", metavar="T", help="Plan with weights of this type instead of the stored ones.")
@click.option("--kv-dtype", default="f16", show_default=True, metavar="K[,V]", help="Types of K and V.")
@click.option("--threads", type=_COUNT, help="Threads; default: one per core.")
@click.option("--precise", is_flag=True, help="16-bit activations.")
@click.option("--measure", is_flag=True, help="Measure the machine anew instead of using kept figures.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second.")
@click.option("--prompt", type=_COUNT, metavar="N", help="Tokens of a prompt.")
@click.option("--output", type=_COUNT, metavar="N", help="Tokens of an answer.")
@click.option("--cost-per-hour", type=click.FloatRange(0), metavar="X", help="Price of the machine's hour.")
@click.option("--explain", is_flag=True, help="Every formula with its numbers filled in.")
@json_option
def command(model: str | None, explain: bool, as_json: bool, **given: Any) -> int:
    """What MODEL needs and how fast it can be; reads no weights.

    MODEL is a GGUF file, a Hugging Face folder (its config.json is enough), or org/name on the hub, of which
    config.json is fetched. What cannot fit exits 1, with the numbers and what would fit.
    """
    plan = plan_of(model, given)
    advice = recommend(plan, given["precise"])
    if as_json:
        emit_json(plan.figures | {"recommended": advice})
    else:
        for line in summary(plan):
            click.echo(line)
        if explain:
            click.echo()
            for line in explained(plan):
                click.echo(line)
        _advise(advice)
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
        )
    else:
        for option in ("threads", "measure", "precise"):
            if given[option]:
                raise click.UsageError(f"--{option} is of this machine: it needs --hardware auto")
        with as_usage():
            host = table_host(given["hardware"], size)
    wanted = ("context", "concurrency", "rate", "prompt", "output", "cost_per_hour")
    goal = Goal(**{key: given[key] for key in wanted})
    return make_plan(model, groups, host, goal, precise=given["precise"])


def _advise(advice: dict[str, Any]) -> None:
    if advice["weights"] is None:
        return
    if advice["weights"] != "as stored":
        click.echo(f"recommended    weights in {advice['weights']}")
    if "warning" in advice:
        click.echo(f"               {advice['warning']}")
    if "command" in advice:
        click.echo(f"to serve it    {advice['command']}")
