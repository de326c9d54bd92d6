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
from dataclasses import dataclass, field
from typing import Any

from spola.core.errors import SpolaError
from spola.core.params import SamplingParams
from spola.core.step import Step, StepOutput
from spola.engine.request import Request
from spola.runtime.answer import Job
from spola.runtime.limits import Limits
from spola.runtime.loop import QueueMailbox, Refusal
from spola.runtime.roofline import Roofline
from spola.runtime.service import Service
from spola.spec.cost import kv_read_bytes, streamed_weight_bytes

__all__ = ["BEST", "Recorder", "candidates", "explain_steps", "explain_tokens"]

BEST = 10
_GREEDY = 1e-5  # temperatures below


@dataclass(slots=True)
class Recorder:
    """Keeps the steps of an engine: pass it as ``record`` of ``build_service``."""

    steps: list[tuple[Step, StepOutput]] = field(default_factory=list)

    def __call__(self, step: Step, output: StepOutput) -> None:
        self.steps.append((step, output))


def explain_steps(
    service: Service, job: Job, recorder: Recorder, limits: Limits | None
) -> list[dict[str, Any]]:
    """One row for each step that computed something of ``job``, in order.

    ``bound_s`` is what the machine of ``limits`` needs at least, ``bound`` what that is bound by.
    """
    config, spec = service.config, service.spec
    rows = []
    for step, output in recorder.steps:
        for piece, out in zip(step.slices, output.slices, strict=True):
            if piece.id not in job.ids:
                continue
            context = piece.start + piece.n
            read = streamed_weight_bytes(spec, service.dtypes, piece.n)
            read += kv_read_bytes(config.kv_groups, context)
            row: dict[str, Any] = {
                "step": step.index,
                "phase": "prefill" if piece.start < len(job.prompt_ids) else "decode",
                "rows": piece.n,
                "position": piece.start,
                "new_tokens": list(out.ids),
                "kv_bytes": context * config.kv_bytes_per_token,
                "bytes_read": read,
                "seconds": output.elapsed_s,
            }
            if limits is not None:
                row |= _bound(service, limits, piece.start, piece.n, piece.n_head, read)
            rows.append(row)
    return rows


def _bound(service: Service, limits: Limits, start: int, rows: int, heads: int, read: int) -> dict[str, Any]:
    config = service.config
    roofline = Roofline(service.spec, service.dtypes, config.kv_groups, limits, config.precise)
    attention = 0.0
    for layer in service.spec.layers:
        a = layer.attention
        pairs = rows * start + rows * (rows + 1) / 2
        attention += 2 * getattr(a, "heads", 1) * (getattr(a, "k_dim", 0) + getattr(a, "v_dim", 0)) * pairs
    memory, arithmetic = read / limits.read_of(read), roofline.arithmetic(rows, heads, attention)
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
    for place, row in enumerate(_logits(service, prompt, output)):
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


def _logits(service: Service, prompt: list[int], output: list[int]) -> Iterator[Sequence[float]]:
    """The logits, f32[V], from which each token of ``output`` was drawn."""
    if not output:
        return
    mailbox = QueueMailbox()
    request = Request(
        id=service.loop.next_id(),
        ids=prompt + output[:-1],
        params=SamplingParams(max_tokens=1),
        want="logits",
        head_from=len(prompt) - 1,
        arrival_s=service.loop.clock(),
    )
    service.loop.add([request], mailbox)
    size = 4 * service.spec.vocab
    while True:
        for mail in mailbox.get():
            if isinstance(mail, Refusal):
                raise mail.error
            if mail.error is not None:
                raise SpolaError(mail.error)
            if mail.logits is not None:
                data = memoryview(mail.logits)
                for at in range(0, len(data), size):
                    yield array("f", data[at : at + size].tobytes())
            if mail.final:
                return


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
    best = heapq.nlargest(BEST, range(len(logits)), key=lambda i: (logits[i], -i))
    raw = _softmax(logits, 1.0)
    if params.temperature < _GREEDY:
        top = max(range(len(adjusted)), key=lambda i: (adjusted[i], -i))
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
        ranked = sorted(order, key=lambda i: (-logits[i], i))
        left = params.top_p * math.fsum(weights.values())
        running, n = 0.0, 0
        while n < len(ranked) and (running < left or n == 0):
            running += weights[ranked[n]]
            n += 1
        order = ranked[:n]
    return {i for i in order if weights[i] >= params.min_p}
