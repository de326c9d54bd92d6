"""``spola verify``: a short report on whether a model file is what it should be."""

from __future__ import annotations

from dataclasses import asdict

import click

from spola.cli.output import emit_json, json_option, note, printable
from spola.evaluate.verify import verify
from spola.load.hf_folder import is_hf_folder
from spola.load.resolve import ModelPath, resolve_model
from spola.runtime.machine import probe

__all__ = ["command"]

_MARKS = {True: "ok", False: "FAILED", None: "not checked"}


@click.command("verify", epilog="Example: spola verify model.gguf --against ./the-folder-it-came-from")
@click.argument("model")
@click.option(
    "--against",
    metavar="MODEL",
    help="The folder a GGUF file was made from, or the full-precision model; default: the file's own folder.",
)
@json_option
def command(model: str, against: str | None, as_json: bool) -> int:
    """Check MODEL: that it opens, its tokenizer and template, and that two backends agree on it.

    With the folder that a GGUF file was made from: ids, structure and every tensor against it, and how far
    the distributions are apart. Exit code 1 when something is off.
    """
    where = resolve_model(model)
    other = resolve_model(against) if against is not None else _beside(where)
    report = verify(where, other, threads=probe().threads, say=lambda line: note(f"checking: {line}"))
    if as_json:
        emit_json({"model": model, "ok": report.ok, "checks": [asdict(check) for check in report.checks]})
    else:
        for check in report.checks:
            click.echo(f"{_MARKS[check.ok]:<12} {check.name}: {printable(check.detail)}")
    return 0 if report.ok else 1


def _beside(where: ModelPath) -> ModelPath | None:
    """The folder of a GGUF file, when it holds the model in safetensors too."""
    folder = where.path.parent
    if where.kind == "hf" or not is_hf_folder(folder) or not any(folder.glob("*.safetensors")):
        return None
    return ModelPath(folder, folder.name, kind="hf")
