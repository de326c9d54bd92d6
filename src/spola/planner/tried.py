"""Trials of models on this machine, kept between commands, and made where there is memory for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from spola.core.errors import SpolaError
from spola.core.runner import KvGroup
from spola.load.cache import cache_folder, write_atomically
from spola.planner.model import PlanModel
from spola.planner.sample import take_sample
from spola.planner.trial import Trial, run_trial
from spola.runtime.contention import believed, watch
from spola.runtime.limits import Say, machine_key
from spola.runtime.machine import Machine
from spola.spec.cost import weight_bytes

__all__ = ["try_model"]

# Bytes of weights: more than a processor's caches hold, as the buffer that reads are timed on.
SIZE = 512 << 20
_FILE = "trials.json"
_RECORDS = 31  # of other models, processors and builds


class _Kept(msgspec.Struct, frozen=True):
    trial: Trial
    tries: int


def try_model(
    model: PlanModel,
    groups: Sequence[KvGroup],
    machine: Machine,
    threads: int,
    *,
    precise: bool = False,
    fresh: bool = False,
    say: Say = lambda _: None,
) -> Trial | None:
    """The trial of ``model`` on this machine; one that is kept, unless ``fresh``. It takes seconds, which
    ``say`` is told.

    None where the memory is too small for it, or where the model cannot be loaded.
    """
    about = (model.spec, sorted(model.dtypes.items()), groups)
    key = (
        f"{machine_key(machine, threads, precise=precise)}|{hashlib.sha256(repr(about).encode()).hexdigest()}"
    )
    table = _read()
    kept = table.get(key)
    if kept is not None and not fresh and believed(kept.trial.others, kept.tries):
        return kept.trial
    room = machine.memory_available // 3
    sample = take_sample(model.spec, model.dtypes, min(SIZE, room))
    if weight_bytes(sample.spec, sample.dtypes) > room:
        return None if kept is None else kept.trial
    say("trying this model's operations, for some seconds; the figures are kept")
    try:
        with watch() as seen:
            found = run_trial(
                sample, threads=threads, k_dtype=groups[0].k_dtype, v_dtype=groups[0].v_dtype, precise=precise
            )
    except SpolaError:
        return None  # a model that this version does not run is planned all the same
    tries = 1 if kept is None else kept.tries + 1
    found = msgspec.structs.replace(found, others=seen.others)
    if kept is not None and not fresh and kept.trial.others < found.others:
        found = kept.trial
    rest = dict([pair for pair in table.items() if pair[0] != key][-_RECORDS:])
    with suppress(OSError):  # a read-only home costs a trial next time, nothing else
        write_atomically(cache_folder() / _FILE, msgspec.json.encode(rest | {key: _Kept(found, tries)}))
    return found


def _read() -> dict[str, _Kept]:
    try:
        return msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.DecodeError):
        return {}
