"""``spola inspect``: what is inside a model file, also one that spola cannot run."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import click

from spola.cli.output import emit_json, json_option, printable
from spola.core.errors import SpolaError
from spola.formats.gguf import GgufFile, open_gguf
from spola.load.defaults import generation_defaults
from spola.load.resolve import resolve_model
from spola.runtime.machine import describe_bytes
from spola.spec.cost import kv_bytes_per_token
from spola.spec.from_gguf import from_gguf
from spola.spec.kv import kv_groups
from spola.text.chat import ChatTemplate, find_template
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
    with open_gguf(resolve_model(model).path, allow_unsupported=True) as file:
        found = _look(file)
        if tensors:
            found["tensor_list"] = _list(file)
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
    found |= _tensors(file)
    found["model"] = _part(lambda: _model(file, unusual), unusual, "model")
    found["tokenizer"] = _part(lambda: _tokenizer(file), unusual, "tokenizer")
    found["chat_template"] = _part(lambda: _chat(file), unusual, "chat template")
    defaults, warnings = generation_defaults(file.metadata)
    found["sampling_defaults"] = defaults
    unusual += warnings
    unusual += [f"tensor {t.name} has type {t.type_name}" for t in file.unsupported.values()][:8]
    if not found["chat_template"]:
        unusual.append("there is no usable chat template: use --raw or --chat-template FILE")
    found["unusual"] = unusual
    found["runs"] = found["model"] is not None and found["tokenizer"] is not None and not file.unsupported
    return found


def _part(look: Any, unusual: list[str], what: str) -> Any:
    """One section, or None and the reason among what is unusual."""
    try:
        return look()
    except SpolaError as error:
        unusual.append(f"{what}: {error}")
        return None


def _tensors(file: GgufFile) -> dict[str, Any]:
    table: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "bytes": 0, "elements": 0})
    for entry in file.tensors.values():
        row = table[entry.dtype.name]
        row["count"] += 1
        row["bytes"] += entry.nbytes
        row["elements"] += entry.elements
    rows = dict(sorted(table.items(), key=lambda item: -item[1]["bytes"]))
    return {
        "tensors": len(file.tensors) + len(file.unsupported),
        "parameters": sum(row["elements"] for row in rows.values()),
        "weights_bytes": sum(row["bytes"] for row in rows.values()),
        "types": rows,
    }


def _model(file: GgufFile, unusual: list[str]) -> dict[str, Any]:
    table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
    spec, warnings = from_gguf(file.metadata, table)
    unusual += warnings
    if spec.head.tied:
        unusual.append("the head is tied: there is no output.weight, the embedding serves as both")
    return {
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "context": spec.context,
        "kv_bytes_per_token": kv_bytes_per_token(kv_groups(spec)),
        "first_layer": _short(spec.layers[0]),
    }


def _short(part: Any) -> str:
    """A part of a spec as it would be written, without the fields that have their default."""
    if not dataclasses.is_dataclass(part):
        return f"{part:.6g}" if isinstance(part, float) else repr(part)
    shown = [
        f"{field.name}={_short(getattr(part, field.name))}"
        for field in dataclasses.fields(part)
        if field.default is dataclasses.MISSING or getattr(part, field.name) != field.default
    ]
    return f"{type(part).__name__}({', '.join(shown)})"


def _tokenizer(file: GgufFile) -> dict[str, Any]:
    tokenizer = Tokenizer.from_gguf(file.metadata)
    vocab = tokenizer.vocab
    return {
        "model": vocab.model,
        "pre": file.metadata.get("tokenizer.ggml.pre"),
        "size": tokenizer.vocab_size,
        "bos": _token(tokenizer, tokenizer.bos_id),
        "eos": _token(tokenizer, tokenizer.eos_id),
        "add_bos": vocab.add_bos,
        "add_eos": vocab.add_eos,
        "ends": [_token(tokenizer, token) for token in sorted(tokenizer.eos_ids)],
    }


def _token(tokenizer: Tokenizer, token: int | None) -> dict[str, Any] | None:
    return None if token is None else {"id": token, "text": tokenizer.token_text(token)}


def _template(file: GgufFile) -> str | None:
    return find_template(file.metadata)


def _chat(file: GgufFile) -> dict[str, Any] | None:
    source = _template(file)
    if source is None:
        return None
    ChatTemplate(source)
    return {"characters": len(source), "mentions_tools": "tools" in source}


def _list(file: GgufFile) -> list[dict[str, Any]]:
    rows = [
        {"name": e.name, "type": e.dtype.name, "shape": list(e.shape), "bytes": e.nbytes}
        for e in file.tensors.values()
    ]
    return rows + [
        {"name": e.name, "type": e.type_name, "shape": list(e.shape), "bytes": None}
        for e in file.unsupported.values()
    ]


def _show(found: dict[str, Any]) -> None:
    def row(name: str, value: object) -> None:
        click.echo(f"{name:<14} {printable(str(value))}")

    row("file", found["path"] + (f" and {found['files'] - 1} more" if found["files"] > 1 else ""))
    row("format", f"GGUF {found['gguf_version']}, alignment {found['alignment']}")
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
        row("tokenizer", f"{tokenizer['model']}, pre {tokenizer['pre']}, {tokenizer['size']} tokens")
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
