"""``spola quantize``: write a model as a GGUF file of another weight type."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spola.cli.output import emit_json, json_option, note
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.quantize.write import quantize
from spola.runtime.machine import describe_bytes, probe
from spola.runtime.weights import converter
from spola.spec.weight_types import WEIGHT_TYPES, weight_type

__all__ = ["command"]


@click.command("quantize", epilog="Example: spola quantize ./Qwen2.5-0.5B-Instruct -o qwen.gguf --type q8_0")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT.gguf",
    help="The file to write; it appears when it is complete.",
)
@click.option("--type", "kind", required=True, type=click.Choice(tuple(WEIGHT_TYPES)), help="Weight type.")
@click.option(
    "--requantize", is_flag=True, help="Also take tensors that are quantized already; their errors stay."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads; default: one per core.")
@json_option
def command(
    model: str, output: Path, kind: str, requantize: bool, threads: int | None, as_json: bool
) -> None:
    """Write MODEL (F32, F16 or BF16: a GGUF file or a Hugging Face folder) as a GGUF file of one weight type.

    Values are rounded to the nearest; vectors, routers and positions stay F32. The head of a 4-bit model is
    Q6_K. Rows that are no whole blocks take the next type that fits, and are listed.
    """
    wanted = weight_type(kind, "--type")
    with open_model(resolve_model(model)) as opened:
        for line in opened.warnings:
            note(line)
        done = quantize(
            opened, output, wanted, converter(threads or probe().threads), _progress, again=requantize
        )
    for line in done.notes:
        note(line)
    total = sum(done.bytes_by_type.values())
    if as_json:
        emit_json(
            {
                "model": model,
                "path": str(output),
                "type": wanted,
                "tensors": done.tensors,
                "bytes": output.stat().st_size,
                "bytes_by_type": dict(done.bytes_by_type),
                "notes": list(done.notes),
            }
        )
        return
    parts = ", ".join(f"{name} {describe_bytes(size)}" for name, size in sorted(done.bytes_by_type.items()))
    click.echo(f"{output}: {done.tensors} tensors, {describe_bytes(total)} ({parts})")


def _progress(done: int, count: int, name: str) -> None:
    if sys.stderr.isatty():
        end = "\n" if done + 1 == count else "\r"
        print(f"{done + 1}/{count} {name:<48}", end=end, file=sys.stderr, flush=True)
