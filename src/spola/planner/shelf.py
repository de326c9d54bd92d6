"""What ``spola models`` lists: models on this disk and those of the table, with what to expect of them here.

Of a model on disk its header is read; of one that is not here the table's figures are used, so that the
prediction comes before the download. Both go through the planner, as ``spola plan`` does it: one request of
at most ``CONTEXT`` tokens, its prompt ``PROMPT`` of them. No weight is read and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from spola.core.errors import SpolaError
from spola.load.names import Known, known_models
from spola.load.resolve import ModelPath, hub_file, models_found
from spola.planner.host import Here, measure_here
from spola.planner.model import PlanModel, model_at, model_of_table
from spola.planner.plan import Goal, make_plan
from spola.runtime.contention import is_quiet
from spola.runtime.limits import Say
from spola.spec.kv import kv_groups

__all__ = ["CONTEXT", "PROMPT", "Row", "Shelf", "look"]

PROMPT = 512  # as the planner's own, where a goal names none
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """``name`` can be given as MODEL. ``size`` of the file or files, and ``memory`` to run it, in bytes.

    ``decode_tok_s`` and ``ttft_s`` are predictions for this machine, None where it could not be measured;
    ``fits`` is None then too. ``problem``: why a model on disk does not run.
    """

    name: str
    on_disk: bool
    size: int
    parameters: int | None = None
    context: int | None = None
    memory: int | None = None
    fits: bool | None = None
    decode_tok_s: float | None = None
    ttft_s: float | None = None
    licence: str = ""
    source: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Shelf:
    """``machine``: what the predictions are for; None, with ``why``, where there are none.
    ``busy``: it had other work while it was measured, so that its figures are low.
    """

    rows: tuple[Row, ...]
    machine: str | None
    why: str = ""
    busy: bool = False


def look(*, table: bool = True, say: Say = lambda _: None) -> Shelf:
    """All models on this disk, then those of the table that are not. ``say`` is told what takes a while."""
    entries = list(_entries(table))
    types = {kind for _, model in entries if model is not None for kind in model.dtypes.values()}
    here, why = None, ""
    try:
        here = measure_here(types, say=say)
    except SpolaError as error:
        why = str(error)
    rows = tuple(row if model is None else _expected(row, model, here) for row, model in entries)
    if here is None:
        return Shelf(rows, None, why)
    machine = here.machine
    busy = not is_quiet(here.limits.others)
    return Shelf(rows, f"{machine.cpu_model}, {here.threads} threads, {here.limits.isa}", busy=busy)


def _entries(table: bool) -> Iterator[tuple[Row, PlanModel | None]]:
    for where in models_found():
        size, source = _size(where), str(where.path)
        try:
            model = model_at(where)
        except SpolaError as error:
            yield Row(where.name, True, size, source=source, problem=str(error)), None
        else:
            yield Row(where.name, True, size, model.parameters, model.spec.context, source=source), model
    for known in known_models() if table else ():
        if not _is_here(known):
            model = model_of_table(known)
            facts = (known.name, False, known.bytes, known.parameters, known.context)
            yield Row(*facts, licence=known.licence, source=known.full_name), model


def _expected(row: Row, model: PlanModel, here: Here | None) -> Row:
    if here is None:
        return row
    groups = kv_groups(model.spec, "f16", "f16")
    goal = Goal(context=min(model.spec.context, CONTEXT))
    try:
        figures = make_plan(model, groups, here.host(model, groups), goal).figures
    except SpolaError as error:
        return replace(row, problem=str(error)) if row.on_disk else row
    return replace(
        row,
        memory=figures["memory"]["total"],
        fits=figures["fits"],
        decode_tok_s=figures["decode_tok_s"],
        ttft_s=figures["prefill_tokens"] / figures["prefill_tok_s"],
    )


def _is_here(known: Known) -> bool:
    with suppress(SpolaError):
        return hub_file(known.repository, known.stem, known.name) is not None
    return False


def _size(where: ModelPath) -> int:
    """Bytes of the file, of all shards of it, or of a folder's weights."""
    if where.kind == "hf":
        parts = list(where.path.glob("*.safetensors"))
    else:
        stem, shard, _ = where.path.name.partition("-00001-of-")
        parts = list(where.path.parent.glob(f"{stem}-*-of-*.gguf")) if shard else [where.path]
    return sum(path.stat().st_size for path in parts if path.is_file())
