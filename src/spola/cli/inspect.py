"""``spola inspect``: what is inside a model file, also one that spola cannot run."""

from __future__ import annotations

from typing import Any

import click

from spola.cli.inspect_folder import look_at_folder
from spola.cli.inspect_parts import answering, attempt, model_of, tensor_list, tensors_of, tokenizer_of
from spola.cli.output import emit_json, json_option, printable
from spola.formats.gguf import GgufFile, open_gguf
from spola.load.defaults import generation_defaults
from spola.load.resolve import resolve_model
from spola.runtime.machine import describe_bytes
from spola.spec.from_gguf import from_gguf
from spola.text.chat import find_template
from spola.text.tokenizer import Tokenizer

__all__ = ["command"]


@click.command("inspect", epilog="Example: spola inspect model.gguf")
@click.argument("model")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--template", is_flag=True, help="Show the chat template.")
@json_option
def command(model: str, tensors: bool, template: bool, as_json: bool) -> None:
    """Show architecture, tensors, tokenizer and chat template of MODEL, and what is unusual about it.

    ``runs`` says whether spola can run it, and if not, why.
    """
    where = resolve_model(model)
    if where.kind == "hf":
        found = look_at_folder(where.path, tensors=tensors, template=template)
    else:
        with open_gguf(where.path, allow_unsupported=True) as file:
            found = _look(file)
            if tensors:
                found["tensor_list"] = tensor_list(file)
            if template:
                found["template_source"] = _template(file)
    if as_json:
        emit_json(found)
    else:
        _show(found)


def _look(file: GgufFile) -> dict[str, Any]:
    unusual: list[str] = []
    found: dict[str, Any] = {
        "path": str(file.path),
        "files": len(file.paths),
        "gguf_version": file.version,
        "alignment": file.alignment,
        "fingerprint": file.fingerprint,
        "name": file.metadata.get("general.name"),
        "architecture": file.metadata.get("general.architecture"),
        "license": file.metadata.get("general.license"),
    }
    found |= tensors_of(file)
    found["model"] = attempt(lambda: _model(file, unusual), unusual, "model")
    found["tokenizer"] = attempt(lambda: _tokenizer(file), unusual, "tokenizer")
    found |= answering(file, lambda: _template(file), generation_defaults(file.metadata), unusual)
    found["runs"] = found["model"] is not None and found["tokenizer"] is not None and not file.unsupported
    return found


def _model(file: GgufFile, unusual: list[str]) -> dict[str, Any]:
    table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
    spec, warnings = from_gguf(file.metadata, table)
    unusual += warnings
    if spec.head.tied:
        unusual.append("the head is tied: there is no output.weight, the embedding serves as both")
    return model_of(spec)


def _tokenizer(file: GgufFile) -> dict[str, Any]:
    pre = file.metadata.get("tokenizer.ggml.pre")
    return tokenizer_of(Tokenizer.from_gguf(file.metadata), pre)


def _template(file: GgufFile) -> str | None:
    return find_template(file.metadata)


def _show(found: dict[str, Any]) -> None:
    def row(name: str, value: object) -> None:
        click.echo(f"{name:<14} {printable(str(value))}")

    row("file", found["path"] + (f" and {found['files'] - 1} more" if found["files"] > 1 else ""))
    if "gguf_version" in found:
        row("format", f"GGUF {found['gguf_version']}, alignment {found['alignment']}")
    else:
        row("format", found["format"])
    row("model", f"{found['name'] or '(no name)'}, architecture {found['architecture']}")
    row("size", f"{found['parameters'] / 1e6:.1f} M parameters, {describe_bytes(found['weights_bytes'])}")
    for name, part in found["types"].items():
        row(f"  {name}", f"{part['count']} tensors, {describe_bytes(part['bytes'])}")
    model = found["model"]
    if model:
        row("layers", f"{model['layers']}, hidden {model['hidden']}, context {model['context']}")
        row("KV cache", f"{describe_bytes(model['kv_bytes_per_token'])} per token in f16")
        row("first layer", model["first_layer"])
    tokenizer = found["tokenizer"]
    if tokenizer:
        row(
            "tokenizer", f"{tokenizer['model']}, pre {tokenizer['pre'] or 'none'}, {tokenizer['size']} tokens"
        )
        row("ends", ", ".join(f"{end['id']} {end['text']}" for end in tokenizer["ends"]) or "none")
    template = found["chat_template"]
    row("chat template", f"{template['characters']} characters" if template else "none")
    for line in found["unusual"]:
        row("note", line)
    row("runs", "yes" if found["runs"] else "no")
    for part in found.get("tensor_list", ()):
        click.echo(f"  {printable(part['name']):<40} {part['type']:<8} {part['shape']}")
    if found.get("template_source"):
        click.echo(printable(found["template_source"], keep="\n\t"))
