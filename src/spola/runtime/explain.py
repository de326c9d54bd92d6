"""An answer explained: what each step computed, and among which candidates each token was drawn.

Steps are those that ran. The ten best tokens come with the log-probabilities that an API would give; logits,
and what temperature, top-k, top-p and min-p make of them, are computed from the answer's logits, asked for
afterwards (equal bits: see docs/numerics.md, whose sampling rule this follows).
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.engine.request import Request
from spola.runtime.answer import Job
from spola.runtime.limits import MachineLimits
from spola.runtime.loop import QueueMailbox, Refusal
from spola.runtime.roofline import Roofline
from spola.runtime.service import Service
from spola.runtime.step_log import StepRow
from spola.spec.cost import kv_read_bytes, streamed_weight_bytes
from spola.spec.decoder import absorbed

__all__ = ["BEST", "candidates", "check_explained", "explain_steps", "explain_tokens"]

BEST = 10
PIECE_BYTES = 32 << 20  # of logits at a time
_GREEDY = 1e-5  # temperatures below


def check_explained(params: SamplingParams, *, constrained: bool = False) -> None:
    """Raise RequestError for what an explanation could not show: several choices, the log-probabilities of
    another distribution, and tokens that are ruled out by ``constrained`` output or one by one.
    """
    ruled = {
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words),
        "min_tokens": params.min_tokens > 0,
        "structured_outputs": constrained or params.structured_outputs is not None,
    }
    for name, given in ruled.items():
        if given:
            raise RequestError(f"explain does not show what {name} rules out; leave one out", param="explain")
    if params.n != 1:
        raise RequestError(f"explain is of one choice; n is {params.n}", param="explain")
    if params.logprobs_mode != "raw":
        raise RequestError("explain shows both distributions: leave logprobs_mode raw", param="explain")


def explain_steps(service: Service, job: Job, limits: MachineLimits | None) -> list[dict[str, Any]]:
    """One row for each step that computed something of ``job``, in order; it was submitted with ``follow``.

    ``rows`` and ``kv_bytes`` are of the job alone. ``step_rows``, ``requests``, ``bytes_read`` and
    ``seconds`` are of the whole step, in which others may have been computed too. ``bound_s`` is what the
    machine of ``limits`` needs at least for that, ``bound`` what it is bound by.
    """
    trace, config = job.trace, service.config
    assert trace is not None, "submit with follow"
    roofline = None
    if limits is not None:
        roofline = Roofline(service.spec, service.dtypes, config.kv_groups, limits, config.precise)
    out = []
    for row in trace.rows:
        read = streamed_weight_bytes(service.spec, service.dtypes, row.step_rows)
        read += sum(kv_read_bytes(config.kv_groups, part.start + part.rows) for part in row.parts)
        told: dict[str, Any] = {
            "step": row.step,
            "phase": "prefill" if row.own.start < len(job.prompt_ids) else "decode",
            "rows": row.own.rows,
            "position": row.own.start,
            "new_tokens": list(row.new_ids),
            "kv_bytes": (row.own.start + row.own.rows) * config.kv_bytes_per_token,
            "requests": len(row.parts),
            "step_rows": row.step_rows,
            "bytes_read": read,
            "seconds": row.elapsed_s,
        }
        if roofline is not None:
            told |= _bound(roofline, row, read)
        out.append(told)
    return out


def _bound(roofline: Roofline, row: StepRow, read: int) -> dict[str, Any]:
    attention = 0.0
    for layer in roofline.spec.layers:
        a = absorbed(layer.attention)
        each = 2 * a.heads * (a.k_dim + a.v_dim)
        attention += each * sum(p.rows * p.start + p.rows * (p.rows + 1) / 2 for p in row.parts)
    memory = read / roofline.limits.read_of(read)
    heads = sum(part.heads for part in row.parts)
    arithmetic = roofline.arithmetic(row.step_rows, heads, attention)
    bound = "memory" if memory >= arithmetic else "compute"
    return {"bound_s": max(memory, arithmetic), "bound": bound}


def explain_tokens(service: Service, job: Job) -> Iterator[dict[str, Any]]:
    """One row for each token of a finished ``job`` that asked for ``BEST`` logprobs: what was drawn, and the
    best candidates there were. Raises SpolaError when the logits cannot be
    had, as from a backend that gives none.
    """
    prompt, output = list(job.prompt_ids), list(job.choices[0].token_ids)
    logprobs = job.choices[0].logprobs
    tokenizer = service.tokenizer
    padding = set(tokenizer.padding_ids) | set(range(tokenizer.vocab_size, service.spec.vocab))
    text = tokenizer.token_text
    for place, row in enumerate(_logits(service, job)):
        drawn = output[place]
        found = candidates(row, job.params, prompt, output[:place], padding)
        listed = dict(logprobs[place].top)
        best = []
        for entry in found:
            token = entry["id"]
            shown = "(padding)" if token in padding else text(token)
            best.append(entry | {"text": shown, "logprob": listed.get(token), "drawn": token == drawn})
        yield {
            "position": len(prompt) + place,
            "id": drawn,
            "text": text(drawn),
            "logprob": logprobs[place].logprob,
            "best": best,
        }


def _logits(service: Service, job: Job) -> Iterator[Sequence[float]]:
    """The logits, f32[V], from which each token of the answer was drawn.

    The answer is computed again, in pieces whose logits stay under ``PIECE_BYTES``.
    """
    prompt, output = list(job.prompt_ids), list(job.choices[0].token_ids)
    most = max(1, PIECE_BYTES // (4 * service.spec.vocab))
    for first in range(0, len(output), most):
        known = prompt + output[: min(first + most, len(output)) - 1]
        yield from _piece(service, job, known, len(prompt) - 1 + first)


def _piece(service: Service, job: Job, ids: list[int], first: int) -> Iterator[Sequence[float]]:
    """The logits of the positions of ``ids`` from ``first`` on."""
    trace, mailbox = job.trace, QueueMailbox()
    assert trace is not None, "submit with follow"
    request = Request(
        id=service.loop.next_id(),
        ids=ids,
        params=SamplingParams(max_tokens=1),
        want="logits",
        head_from=first,
        arrival_s=service.loop.clock(),
        adapter=trace.adapter,
        key=trace.key,
        weight=trace.weight,
    )
    service.loop.add([request], mailbox)
    size, final = 4 * service.spec.vocab, False
    try:
        while not final:
            for mail in mailbox.get():
                if isinstance(mail, Refusal):
                    raise mail.error
                if mail.error is not None:
                    raise SpolaError(mail.error)
                final = mail.final
                if mail.logits is not None:
                    data = memoryview(mail.logits)
                    for at in range(0, len(data), size):
                        yield array("f", data[at : at + size].tobytes())
    finally:
        if not final:  # nobody reads on
            service.loop.abort([request.id])


def candidates(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    padding: Collection[int] = (),
) -> list[dict[str, Any]]:
    """The ``BEST`` tokens by raw logit, each with its probability, the one after temperature (and penalties),
    and the one after top-k, top-p and min-p: 0 for a token that they took out. ``padding``: ids that are no
    tokens, and are never drawn.
    """
    adjusted = _adjusted(logits, params, prompt, output, padding)
    least = heapq.nlargest(BEST, logits)[-1]
    best = heapq.nsmallest(
        BEST, [i for i, value in enumerate(logits) if value >= least], lambda i: (-logits[i], i)
    )
    raw = _softmax(logits, 1.0)
    if params.temperature < _GREEDY:
        top = adjusted.index(max(adjusted))
        return [
            {
                "id": i,
                "logit": logits[i],
                "probability": raw(i),
                "after_temperature": float(i == top),
                "after_filters": float(i == top),
            }
            for i in best
        ]
    tempered = _softmax(adjusted, params.temperature)
    kept = _kept(adjusted, params)
    total = math.fsum(tempered(i) for i in kept)
    return [
        {
            "id": i,
            "logit": logits[i],
            "probability": raw(i),
            "after_temperature": tempered(i),
            "after_filters": tempered(i) / total if i in kept else 0.0,
        }
        for i in best
    ]


def _adjusted(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    padding: Collection[int],
) -> Sequence[float]:
    """After bans, logit bias and penalties, in the order of docs/numerics.md."""
    r, presence, frequency = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    if not params.logit_bias and r == 1.0 and not presence and not frequency and not padding:
        return logits
    values = array("f", logits)
    for token in padding:
        values[token] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        values[token] += bias
    for token in {*prompt, *output}:
        values[token] = values[token] / r if values[token] > 0 else values[token] * r
    for token, count in Counter(output).items():
        values[token] -= frequency * count + presence
    return values


def _softmax(logits: Sequence[float], temperature: float) -> Any:
    """A function from a token to its probability."""
    most = max(logits)
    exp = math.exp
    total = math.fsum([exp((value - most) / temperature) for value in logits])
    return lambda i: exp((logits[i] - most) / temperature) / total


def _kept(logits: Sequence[float], params: SamplingParams) -> set[int]:
    """Tokens that top-k, then top-p, then min-p leave."""
    count = len(logits)
    k = params.top_k if 0 < params.top_k < count else count
    order: Sequence[int] = range(count)
    if k < count:
        order = heapq.nlargest(k, order, key=lambda i: (logits[i], -i))
    most, temperature = max(logits), params.temperature
    weights = {i: math.exp((logits[i] - most) / temperature) for i in order}
    if params.top_p < 1.0:
        ranked = sorted(sorted(order), key=logits.__getitem__, reverse=True)  # stable: equal ones by id
        left = params.top_p * math.fsum(weights.values())
        running, n = 0.0, 0
        while n < len(ranked) and (running < left or n == 0):
            running += weights[ranked[n]]
            n += 1
        order = ranked[:n]
    return {i for i in order if weights[i] >= params.min_p}
