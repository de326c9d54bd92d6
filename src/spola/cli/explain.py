"""``spola run --explain``: the loop that writes an answer, made visible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spola.cli.output import note, printable
from spola.core.errors import SpolaError
from spola.runtime.answer import Job
from spola.runtime.explain import explain_steps, explain_tokens
from spola.runtime.limits import MachineLimits, known_limits
from spola.runtime.machine import describe_bytes
from spola.runtime.service import Service

__all__ = ["explanation", "shown"]


def explanation(service: Service, job: Job) -> dict[str, Any]:
    """What ``run --explain --json`` adds: ``steps`` and ``tokens``."""
    steps = explain_steps(service, job, _limits(service))
    return {"steps": steps, "tokens": list(explain_tokens(service, job))}


def _limits(service: Service) -> MachineLimits | None:
    """The machine's figures, kept or measured now that the answer is out; None where they cannot be had."""
    if service.config.device != "cpu":
        return None
    try:
        return known_limits(service.machine, service.config.threads, say=note)[0]
    except SpolaError:
        return None


def shown(service: Service, found: dict[str, Any]) -> Iterator[str]:
    """For a terminal: each step, and under it the candidates of the token that it gave."""
    tokens = iter(found["tokens"])
    for row in found["steps"]:
        bound = ""
        if "bound_s" in row:
            bound = f", at least {row['bound_s'] * 1e3:.2f} ms ({row['bound']}-bound)"
        yield (
            f"step {row['step']}: {row['phase']}, {row['rows']} token{'s' * (row['rows'] > 1)} computed from "
            f"position {row['position']}; KV cache {describe_bytes(row['kv_bytes'])}; reads "
            f"{describe_bytes(row['bytes_read'])}; {row['seconds'] * 1e3:.2f} ms{bound}"
        )
        for _ in row["new_tokens"]:
            token = next(tokens, None)
            if token is not None:
                yield from _token(token)


def _token(token: dict[str, Any]) -> Iterator[str]:
    yield f"    {'candidate':<22}{'logit':>9}{'probability':>13}{'temperature':>13}{'top-k/top-p':>13}"
    for entry in token["best"]:
        mark = "-> " if entry["drawn"] else "   "
        name = repr(printable(entry["text"]))[:20]
        yield (
            f" {mark}{name:<22}{entry['logit']:>9.3f}{entry['probability']:>13.4%}"
            f"{entry['after_temperature']:>13.4%}{entry['after_filters']:>13.4%}"
        )
    if not any(entry["drawn"] for entry in token["best"]):
        yield f" -> {printable(token['text'])!r}, which is not among the {len(token['best'])} best"
