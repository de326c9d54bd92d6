"""``spola doctor``: look at the machine and the installation, say what to fix."""

from __future__ import annotations

from typing import Any

import click

from spola.cli.output import emit_json, json_option
from spola.runtime.checkup import Checkup, check_all
from spola.runtime.machine import describe_bytes

__all__ = ["command"]


@click.command("doctor", epilog="Example: spola doctor")
@click.option("--quick", is_flag=True, help="Leave out measuring the memory bandwidth, which takes a second.")
@json_option
def command(quick: bool, as_json: bool) -> int:
    """Check instruction sets, processors, memory, bandwidth, models and versions.

    Exit code 1 if there is a problem; each comes with its remedy.
    """
    found = check_all(bandwidth=not quick)
    if as_json:
        emit_json(
            {
                **found.facts,
                "problems": [{"what": what, "remedy": remedy} for what, remedy in found.problems],
                "advice": [{"what": what, "remedy": remedy} for what, remedy in found.advice],
            }
        )
    else:
        _show(found)
    return 0 if found.healthy else 1


def _show(found: Checkup) -> None:
    facts = found.facts
    for name, value in facts["versions"].items():
        _row(name, value or "missing")
    for name, about in facts["backends"].items():
        _row(f"backend {name}", _backend(about))
    cpu = facts["processors"]
    quota = "" if cpu["quota"] is None else f", quota {cpu['quota']:.4g}"
    _row("processors", f"{cpu['model']}: {cpu['allowed']} allowed on {cpu['cores']} cores{quota}")
    _row("threads", f"{cpu['threads']}: {cpu['threads_reason']}")
    memory = facts["memory"]
    _row(
        "memory",
        f"{describe_bytes(memory['available_bytes'])} free of {describe_bytes(memory['limit_bytes'])} "
        f"({memory['limit_reason']}); huge pages: {memory['huge_pages']}",
    )
    bandwidth = facts.get("bandwidth")
    if bandwidth:
        _row("bandwidth", f"{bandwidth['read_gb_s']:.1f} GB/s read by {bandwidth['threads']} threads")
    for model in facts["models"]:
        _row("model", f"{model['name']}  {model['path']}")
    for kind, pairs in (("PROBLEM", found.problems), ("advice", found.advice)):
        for what, remedy in pairs:
            click.echo(f"{kind}: {what}\n  -> {remedy}")
    if found.healthy:
        click.echo("no problem found")


def _row(name: str, value: object) -> None:
    click.echo(f"{name:<27} {value}")


def _backend(about: dict[str, Any]) -> str:
    if "error" in about:
        return f"not usable: {about['error']}"
    if "chosen" not in about:
        return "ready"
    others = [name for name in about["usable"] if name != about["chosen"]]
    return f"ready, on {about['chosen']}" + (f" (also {', '.join(others)})" if others else "")
