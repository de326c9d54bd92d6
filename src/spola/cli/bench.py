"""``spola bench``: speed of a model and of the kernels, beside this machine's limits."""

from __future__ import annotations

from typing import Any

import click

from spola.bench.kernels import ROWS, bench_kernels
from spola.bench.offline import Offline, Plan
from spola.cli.bench_compare import compare, report
from spola.cli.bench_serve import serve
from spola.cli.options import engine_options, model_option, read_options
from spola.cli.output import emit_json, json_option, note, note_others
from spola.core.dtype import BY_NAME
from spola.runtime.build import load_engine
from spola.runtime.limits import bench_lock, measure_limits

__all__ = ["command"]


@click.group("bench", epilog="Example: spola bench offline -n 64 -b 1,4")
def command() -> None:
    """Measure speed. One benchmark at a time runs on a machine; the load found is printed."""


command.add_command(serve)
command.add_command(compare)
command.add_command(report)


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers like 1,8,16") from None
    if min(numbers) < 1:
        raise click.BadParameter(f"{value!r}: every number must be at least 1")
    return numbers


@command.command("offline", epilog="Example: spola bench offline -m model.gguf -p 512 -n 128 -b 1,8")
@model_option
@click.option("-p", "--prompt", default=512, show_default=True, type=click.IntRange(1), help="Prompt tokens.")
@click.option("-n", "--tokens", default=128, show_default=True, type=click.IntRange(1), help="Decode steps.")
@click.option(
    "-b", "--batch", default="1,8,16", show_default=True, callback=_numbers, help="Requests at a time."
)
@click.option(
    "-d", "--depth", default=0, show_default=True, type=click.IntRange(0), help="Tokens cached before decode."
)
@click.option("--no-kv-cache", is_flag=True, help="Compute the whole text anew for every token.")
@click.option(
    "--repeat", default=5, show_default=True, type=click.IntRange(1), help="Runs of each; the median counts."
)
@engine_options
@json_option
def offline(
    model: str | None,
    prompt: int,
    tokens: int,
    batch: tuple[int, ...],
    depth: int,
    no_kv_cache: bool,
    repeat: int,
    as_json: bool,
    **given: Any,
) -> int:
    """Prefill and decode speed of a model, through the engine, without a server.

    The roofline is the fraction of what this machine's memory and arithmetic, measured now, would allow;
    more than all of it is an error. Weights that fit into the caches are held against the caches' speed.
    """
    plan = Plan(prompt, tokens, batch, depth, repeat, kv_cache=not no_kv_cache)
    if given["max_model_len"] is None:
        given["max_model_len"] = plan.longest
    with bench_lock(note) as load:
        loaded = load_engine(model, read_options(given, max_seqs=max(batch)))
        try:
            limits = measure_limits(loaded.config.threads, loaded.config.packed_bytes)
            result = Offline(loaded, limits).run(plan)
        finally:
            loaded.engine.close()
    note_others(limits.others)
    if as_json:
        emit_json(result | {"load": load})
    else:
        _show(result)
    if max(row["roofline"] for row in (result["prefill"], *result["decode"])) <= 1:
        return 0
    note(
        "spola: error: faster than this machine's limits; they were measured while it was busy, so run again"
    )
    return 1


def _show(result: dict[str, Any]) -> None:
    machine = result["machine"]
    click.echo(
        f"{result['model']}, {result['threads']} threads, {result['isa']}: "
        f"reads {machine['read_gb_s']:.1f} GB/s, int8 {machine['int8_gops']:.0f} Gop/s, "
        f"f32 {machine['f32_gflops']:.0f} Gflop/s"
    )
    rows = [(f"prefill {result['prefill']['tokens']}", result["prefill"])]
    rows += [(f"decode {row['batch']} at {row['depth']}", row) for row in result["decode"]]
    for name, row in rows:
        click.echo(
            f"{name:<18} {row['tok_s']:9.1f} tok/s  ({row['tok_s_min']:.1f} to {row['tok_s_max']:.1f})  "
            f"{row['roofline']:.0%} of the roofline"
        )


@command.command("kernels", epilog="Example: spola bench kernels --type Q4_K,Q6_K")
@click.option("--type", "types", metavar="T[,T]", help="Weight types; default: all.")
@click.option(
    "--rows", default=",".join(map(str, ROWS)), show_default=True, callback=_numbers, help="Activation rows."
)
@click.option("--precise", is_flag=True, help="16-bit activations.")
@json_option
def kernels(types: str | None, rows: tuple[int, ...], precise: bool, as_json: bool) -> None:
    """Every linear kernel, one thread, beside the ceiling of its own instructions and the memory's reads.

    SPOLA_ISA chooses another instruction set than the best.
    """
    names = tuple(BY_NAME) if types is None else tuple(types.upper().split(","))
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise click.UsageError(f"--type: {unknown[0]} is none of {', '.join(BY_NAME)}")
    with bench_lock(note) as load:
        limits = measure_limits(1)
        table = bench_kernels(limits, names, rows=rows, precise=precise)
    note_others(limits.others)
    if as_json:
        emit_json({"isa": limits.isa, "machine": limits.as_json(), "load": load, "kernels": table})
        return
    click.echo(f"{limits.isa}, one thread; the memory gives it {limits.read / 1e9:.1f} GB/s")
    for row in table:
        click.echo(
            f"{row['type']:<7} {row['format']:<4} {row['rows']:>5} x {row['columns']:<5} m {row['m']:<4} "
            f"{row['gmac_s']:8.1f} GMAC/s  {row['of_ceiling']:4.0%} of {row['ceiling_gmac_s']:.0f}  "
            f"{row['gb_s']:6.1f} GB/s"
        )
