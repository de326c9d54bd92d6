"""A trial: the operations of a model timed on this machine before the model is there, by its header alone.

A sample of it (``planner.sample``) goes through the real engine in steps of different widths. Kept are
seconds by operation, not of steps: layers by rows, attention by positions, logits by their rows, and what
Python adds to a step whose weights have driven it out of the caches. Any step is then the sum of its parts.
After Vidur (arXiv 2405.05465), which predicts from profiles of operators in the same way.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from spola.core.errors import ConfigError
from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, RunnerConfig
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.metrics import Metrics
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.planner.sample import Sample, sample_tensors
from spola.spec.cost import attention_flops
from spola.spec.decoder import DecoderSpec
from spola.spec.kv import kv_groups

__all__ = ["Slices", "Trial", "run_trial"]

BATCHES = (1, 2, 4, 8, 16)
PROMPTS = (32, 128, 256)
PAIR = 2  # requests whose prompts are there when attention over many positions is timed
WARM = 4  # steps of a batch in a round that are not timed: they find the caches full of others' work
STEPS = 12  # steps after these
ROUNDS = (3, 7)  # at least and at most
ENOUGH_S = 4.0  # for the rounds: no further one begins
_ATTENTION = ("attention", "merge", "latent")

Slices = Sequence[tuple[int, int, int]]  # first position, rows, rows with logits


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one step's parts, of the whole model.

    ``layers`` by rows, without attention; ``head`` by rows with logits, sampling with it; ``outside`` the
    decoder by requests; ``attention`` by requests that decode at position ``short``; ``prompt`` attention by
    rows of a prompt from its start. ``decode_flop`` and ``prompt_flop``: of each further operation of
    attention. ``others``: processors that other work took meanwhile.
    """

    layers: dict[int, float]
    head: dict[int, float]
    outside: dict[int, float]
    attention: dict[int, float]
    prompt: dict[int, float]
    short: int
    decode_flop: float
    prompt_flop: float
    others: float = 0.0

    def seconds(self, spec: DecoderSpec, slices: Slices) -> float:
        """Seconds of a step of ``slices`` of the model ``spec``, which was tried."""
        return sum(self.parts(spec, slices).values())

    def parts(self, spec: DecoderSpec, slices: Slices) -> dict[str, float]:
        """The same by what it is for."""
        heads = sum(head for _, _, head in slices)
        attention = sum(self._prompt(spec, start, n) for start, n, _ in slices if n > 1)
        single = [start for start, n, _ in slices if n == 1]
        if single:
            near = attention_flops(spec, 1, self.short)
            more = sum(attention_flops(spec, 1, at) - near for at in single if at > self.short)
            attention += between(self.attention, len(single)) + self.decode_flop * more
        return {
            "layers": between(self.layers, sum(n for _, n, _ in slices)),
            "attention": attention,
            "logits": between(self.head, heads) if heads else 0.0,
            "Python and the call": between(self.outside, len(slices)),
        }

    def _prompt(self, spec: DecoderSpec, start: int, rows: int) -> float:
        most = max(self.prompt)
        first = attention_flops(spec, rows, 0)
        if rows <= most:
            begin = between(self.prompt, rows)
        else:
            begin = self.prompt[most] * first / attention_flops(spec, most, 0)
        return begin + self.prompt_flop * (attention_flops(spec, rows, start) - first)


def between(table: Mapping[int, float], at: int) -> float:
    """On the straight lines through the points of ``table``, and beyond its ends; never less than nothing."""
    points = sorted(table.items())
    if len(points) == 1:
        return points[0][1]
    lines = list(pairwise(points))
    (low, under), (high, over) = next((line for line in lines if at <= line[1][0]), lines[-1])
    return max(0.0, under + (over - under) * (at - low) / (high - low))


class _Seen(NamedTuple):
    """One step of the sample: seconds outside of the decoder, and of its parts for the whole model."""

    outside: float
    layers: float
    attention: float
    head: float


class _Runs:
    """The sample in an engine, and steps of it timed."""

    def __init__(self, sample: Sample, runner: Any, config: RunnerConfig) -> None:
        limits = Limits(
            max_step_tokens=config.max_step_tokens,
            max_seqs=config.max_seqs,
            max_model_len=config.max_model_len,
            prefix_cache=False,
        )
        scheduler = Scheduler(limits, runner.capabilities, config.kv_groups, config.kv_blocks)
        metrics = Metrics(config.max_seqs, stall_s=60.0)
        self.engine = Engine(runner, scheduler, vocab=sample.spec.vocab, observers=[metrics])
        self._sample, self._runner = sample, runner
        self._random = random.Random(0)
        self._next = 0

    def add(self, prompt: int, tokens: int) -> Request:
        self._next += 1
        ids = [self._random.randrange(self._sample.spec.vocab) for _ in range(prompt)]
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        request = Request(id=self._next, ids=ids, params=params)
        self.engine.add(request)
        return request

    def steps(self, count: int = 1) -> _Seen:
        """The mean of so many steps, one right after the other."""
        self._runner.time_ops(True)
        start = time.perf_counter()
        for _ in range(count):
            self.engine.step(time.monotonic())
        passed = time.perf_counter() - start
        times = [(kind, names, s / count) for kind, names, s in self._runner.op_times()]
        self._runner.time_ops(False)
        return _parts(self._sample, times, passed / count)

    def drain(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.engine.abort(request.id)
        while self.engine.has_work:
            self.engine.step(time.monotonic())

    def prompt(self, rows: int) -> _Seen:
        """A prompt of so many rows, alone."""
        request = self.add(rows, 1)
        seen = self.steps()
        self.drain([request])
        return seen

    def decode(self, requests: Sequence[Request]) -> _Seen:
        """The mean of some steps of ``requests``, after their prompts and some more."""
        while any(request.n_output == 0 for request in requests):
            self.engine.step(time.monotonic())
        for _ in range(WARM):
            self.engine.step(time.monotonic())
        return self.steps(STEPS)


def _parts(sample: Sample, times: Sequence[tuple[str, tuple[str, ...], float]], passed: float) -> _Seen:
    """What is between two matrices is of the layer of the second."""
    count = len(sample.chosen)
    layers, attention = [0.0] * count, [0.0] * count
    head = embed = 0.0
    layer: int | None = None
    for kind, matrices, seconds in reversed(times):
        named = [name.split(".") for name in matrices if name.startswith("layers.")]
        if named:
            layer = int(named[0][1])
        if kind in ("head", "sample"):
            head += seconds * (sample.vocab / sample.spec.vocab)
        elif kind == "embed":
            embed += seconds
        else:
            (attention if kind in _ATTENTION else layers)[count - 1 if layer is None else layer] += seconds
    inside = sum(seconds for _, _, seconds in times)
    return _Seen(max(0.0, passed - inside), embed + sample.whole(layers), sample.whole(attention), head)


def _median(seen: Sequence[_Seen]) -> _Seen:
    return _Seen(*(statistics.median(column) for column in zip(*seen, strict=True)))


def run_trial(
    sample: Sample, *, threads: int, k_dtype: str = "f16", v_dtype: str = "f16", precise: bool = False
) -> Trial:
    """Load the sample and time its steps. Raises ConfigError without the native backend, CapacityError where
    there is no memory for it.
    """
    try:
        from spola.backends.native import NativeRunner
    except ImportError:
        raise ConfigError("the native backend is not built here, and it tries the model") from None
    groups = kv_groups(sample.spec, k_dtype, v_dtype)
    longest = max(PROMPTS) + 2 * BLOCK_TOKENS
    blocks = 2 * max(BATCHES) + PAIR * -(-longest // BLOCK_TOKENS) + 4
    config = RunnerConfig(
        kv_groups=groups,
        kv_blocks=(blocks,) * len(groups),
        max_step_tokens=PAIR * max(PROMPTS),
        max_seqs=max(BATCHES),
        max_model_len=longest,
        threads=threads,
        precise=precise,
    )
    runner = NativeRunner()
    runner.load(sample.spec, sample_tensors(sample), config)
    runs = _Runs(sample, runner, config)
    try:
        return _timed(sample.spec, runs)
    finally:
        runs.engine.close()


def _timed(spec: DecoderSpec, runs: _Runs) -> Trial:
    """Everything in turns, so that a moment that is slow or fast is in no figure alone."""
    runs.prompt(min(PROMPTS))  # wakes up caches, clocks and workers
    singles: dict[int, list[_Seen]] = {batch: [] for batch in BATCHES}
    prompts: dict[int, list[_Seen]] = {rows: [] for rows in PROMPTS}
    far: dict[int, list[_Seen]] = {batch: [] for batch in range(1, PAIR + 1)}
    least, most_rounds = ROUNDS
    end = time.monotonic() + ENOUGH_S
    for done in range(most_rounds):
        if done >= least and time.monotonic() > end:
            break
        for batch in BATCHES:
            requests = [runs.add(1, BLOCK_TOKENS) for _ in range(batch)]
            singles[batch].append(runs.decode(requests))
            runs.drain(requests)
        for rows in PROMPTS:
            prompts[rows].append(runs.prompt(rows))
    requests = [runs.add(max(PROMPTS), 2 * BLOCK_TOKENS) for _ in range(PAIR)]
    both = runs.steps()
    for batch in reversed(range(1, PAIR + 1)):
        far[batch] = [runs.decode(requests[:batch])]
        runs.drain(requests[batch - 1 : batch])
    one = {batch: _median(seen) for batch, seen in singles.items()}
    many = {rows: _median(seen) for rows, seen in prompts.items()}
    short = 1 + WARM + STEPS // 2  # the position in the middle of those steps
    far_at = max(PROMPTS) + WARM + STEPS // 2
    more = attention_flops(spec, 1, far_at) - attention_flops(spec, 1, short)
    each = [(far[batch][0].attention - one[batch].attention) / batch for batch in far]
    most = max(PROMPTS)
    first, second = sorted(PROMPTS)[-2:]
    return Trial(
        layers={n: seen.layers for n, seen in {**one, **many}.items()} | {PAIR * most: both.layers},
        head={batch: seen.head for batch, seen in one.items()},
        outside={batch: seen.outside for batch, seen in one.items()},
        attention={batch: seen.attention for batch, seen in one.items()},
        prompt={1: one[1].attention} | {rows: seen.attention for rows, seen in many.items()},
        short=short,
        decode_flop=max(0.0, statistics.fmean(each) / more),
        prompt_flop=max(
            0.0,
            (many[second].attention - many[first].attention)
            / (attention_flops(spec, second, 0) - attention_flops(spec, first, 0)),
        ),
    )
