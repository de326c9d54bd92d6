"""``spola pull``: bring a model here, going on where an earlier attempt ended."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spola.cli.output import emit_json, json_option, note
from spola.cli.progress import Downloads
from spola.core.errors import ConfigError
from spola.load.fetch import pull_embedded
from spola.load.hub import Plan, download, is_offline, look_up
from spola.load.names import Known, known
from spola.load.resolve import EMBEDDED_NAME, hub_name, resolve_model
from spola.load.transfer import describe_size

__all__ = ["command"]


@dataclass(frozen=True, slots=True)
class _Pulled:
    """``name``: what to write for MODEL from now on. ``size``: bytes of all; ``fetched``: of them, now."""

    path: Path
    name: str
    size: int
    fetched: int
    details: dict[str, Any]


@click.command("pull", epilog="Example: spola pull qwen2.5-0.5b")
@click.argument("model")
@json_option
def command(model: str, as_json: bool) -> None:
    """Fetch MODEL: smollm2, a short name of `spola models`, or org/name[:TYPE] on the Hugging Face hub.

    Of a repository with GGUF files one is chosen (TYPE, or the file's name; else Q4_K_M, Q8_0, Q4_0 or what
    there is), and said which; one without comes as a safetensors folder. Goes into the hub's own cache. An
    interrupted download goes on where it was, and every file is compared with its hash.
    """
    pulled = _embedded() if model == EMBEDDED_NAME else _from_hub(model)
    note("fetched and checked" if pulled.fetched else "already here, checked")
    note(f"run it: spola run -m {shlex.quote(pulled.name)} 'What is a loom?'")
    if as_json:
        facts = {"model": model, "name": pulled.name, "path": str(pulled.path), "fetched": pulled.fetched > 0}
        emit_json(facts | {"bytes": pulled.size, "fetched_bytes": pulled.fetched} | pulled.details)
    else:
        click.echo(str(pulled.path))


def _embedded() -> _Pulled:
    path, fetched = pull_embedded()
    size = path.stat().st_size
    return _Pulled(path, EMBEDDED_NAME, size, size if fetched else 0, {})


def _from_hub(model: str) -> _Pulled:
    row = known(model)
    repository, tag = (row.repository, None) if row else _named(model)
    if is_offline():
        return _offline(model)
    plan = look_up(repository, tag, None if row is None else row.file)
    kept = plan.here
    note(f"{plan.note}, {describe_size(plan.size)}" + (f", {describe_size(kept)} of it here" if kept else ""))
    if row is not None and plan.size != row.bytes:
        note(f"the table of short names says {row.bytes} bytes; the hub's figure holds")
    try:
        with Downloads() as progress:
            path = download(plan, progress)
    except KeyboardInterrupt:
        note(
            f"interrupted: {describe_size(plan.here)} of {describe_size(plan.size)} are kept; "
            f"`spola pull {model}` goes on from there"
        )
        raise
    files = [file.name for file in plan.files]
    details = {"repository": plan.repository, "commit": plan.commit, "files": files}
    return _Pulled(path, _name(model, row, plan), plan.size, plan.size - kept, details)


def _name(model: str, row: Known | None, plan: Plan) -> str:
    """What means this very file from now on, whatever else is pulled of the repository."""
    if row is not None or plan.is_folder:
        return model
    return f"{plan.repository}:{plan.files[0].name.rsplit('/', 1)[-1].removesuffix('.gguf')}"


def _named(model: str) -> tuple[str, str | None]:
    shown = model[:80]
    if model.startswith("ollama:"):
        raise ConfigError(
            f"pull {shown}: Ollama fetches its own models; after `ollama pull` spola runs them by this name"
        )
    named = hub_name(model)
    if named is not None and not model.endswith(".gguf"):
        return named
    if Path(model).is_absolute() or ".." in Path(model).parts or model.startswith((".", "~")):
        raise ConfigError(f"pull {shown}: is a path, and is no name on the hub; run a file with -m FILE")
    raise ConfigError(f"pull {shown}: is no short name (`spola models` lists them) and not org/name[:TYPE]")


def _offline(model: str) -> _Pulled:
    """What is here, not compared with anything: HF_HUB_OFFLINE forbids asking."""
    try:
        where = resolve_model(model)
    except ConfigError:
        raise ConfigError(
            f"{model}: is not on this disk, and HF_HUB_OFFLINE is set; unset it to download"
        ) from None
    note("HF_HUB_OFFLINE is set: what is here is not compared with the hub")
    parts = where.path.glob("*.safetensors") if where.kind == "hf" else [where.path]
    return _Pulled(where.path, model, sum(path.stat().st_size for path in parts), 0, {})
