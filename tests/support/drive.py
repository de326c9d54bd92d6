"""Runs requests on a bare Runner, without an engine: any batch, any chunks, shuffled and poisoned blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, Runner, RunnerConfig
from spola.core.step import (
    RequestState,
    Slice,
    SliceOutput,
    Step,
    StepOutput,
    TokenLogprob,
    Want,
    pack_ids,
)

__all__ = ["Driver", "Job", "Outcome", "greedy"]


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "logprobs": 3} | fields)


@dataclass(frozen=True)
class Job:
    """One request. ``steps`` is how many tokens to sample; ``drafts`` are proposed after every token."""

    prompt: Sequence[int]
    steps: int = 8
    params: SamplingParams = field(default_factory=greedy)
    seed: int = 0
    choice: int = 0
    want: Want = "sample"
    mask: bytes | None = None  # of every sampled position
    drafts: Sequence[int] = ()  # what the request is expected to generate, for speculation
    ends: Sequence[int] = ()  # banned before params.min_tokens
    bad: Sequence[Sequence[int]] = ()


@dataclass
class Outcome:
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    vector: np.ndarray | None = None
    accepted: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    error: str | None = None


class _Running:
    def __init__(self, id: int, job: Job) -> None:
        self.id, self.job, self.known, self.computed = id, job, list(job.prompt), 0
        self.tables: list[list[int]] = []
        self.out = Outcome()
        self.sent = False

    @property
    def goal(self) -> int:
        """Positions to compute; the last token of a scored text predicts nothing that is asked for."""
        return len(self.known) - (self.job.want == "score")

    @property
    def done(self) -> bool:
        if self.out.error is not None:
            return True
        if self.job.want == "sample":
            return len(self.out.ids) >= self.job.steps
        return self.computed >= self.goal


class Driver:
    """Owns the blocks of one loaded runner. Free blocks are shuffled and hold NaN."""

    def __init__(self, runner: Runner, config: RunnerConfig, vocab: int, seed: int = 0) -> None:
        self.runner, self.config, self.vocab = runner, config, vocab
        self.rng = np.random.default_rng(seed)
        self.free = [list(self.rng.permutation(n)) for n in config.kv_blocks]
        for group, blocks in enumerate(self.free):
            for block in blocks:
                runner.poison(group, int(block))  # type: ignore[attr-defined]
        self.steps: list[Step] = []
        self.outputs: list[StepOutput] = []
        self.next_id = 0
        self.gone: list[int] = []

    def run(self, jobs: Iterable[Job], chunk: int = 512) -> list[Outcome]:
        """All ``jobs`` together, each at most ``chunk`` prompt rows a step."""
        running = [_Running(self.next_id + i, job) for i, job in enumerate(jobs)]
        self.next_id += len(running)
        while live := [r for r in running if not r.done]:
            self.step(live, chunk)
            for r in live:
                if r.done:
                    self.release(r)
        return [r.out for r in running]

    def alone(self, job: Job, chunk: int = 512) -> Outcome:
        return self.run([job], chunk)[0]

    def preempted(self, job: Job, after: int) -> Outcome:
        """Run ``job``, but take its blocks away once it has ``after`` tokens and start over."""
        r = _Running(self.next_id, job)
        self.next_id += 1
        while not r.done:
            self.step([r], 512)
            if r.sent and len(r.out.ids) == after:
                self._free_blocks(r)
                r.computed, r.sent = 0, False
        self.release(r)
        return r.out

    def step(self, live: list[_Running], chunk: int) -> None:
        slices = [self._slice(r, chunk) for r in live]
        new = tuple(_state(r) for r in live if not r.sent)
        step = Step(len(self.steps), tuple(slices), new=new, gone=tuple(self.gone))
        self.gone = []
        output = self.execute(step)
        for r, piece, got in zip(live, slices, output.slices, strict=True):
            r.sent = True
            _commit(r, piece, got, self.vocab)

    def execute(self, step: Step) -> StepOutput:
        output = self.runner.execute(step)
        self.steps.append(step)
        self.outputs.append(output)
        return output

    def release(self, r: _Running) -> None:
        self._free_blocks(r)
        self.gone.append(r.id)

    def _free_blocks(self, r: _Running) -> None:
        for group, table in enumerate(r.tables):
            for block in (b for b in table if b >= 0):
                self.runner.poison(group, block)  # type: ignore[attr-defined]
                self.free[group].append(block)
        r.tables = []

    def _slice(self, r: _Running, chunk: int) -> Slice:
        start, end = r.computed, min(r.goal, r.computed + chunk)
        drafts: Sequence[int] = ()
        job = r.job
        if job.want == "sample" and end == r.goal:
            drafts = job.drafts[len(r.out.ids) : job.steps - 1]
        ids = [*r.known[start:end], *drafts]
        self._reserve(r, start + len(ids))
        self._drop_dead(r)
        n_head = len(ids)
        targets = r.known[start + 1 : end + 1] if job.want == "score" else []
        if job.want == "sample":
            n_head = 1 + len(drafts) if end == r.goal else 0
            if job.params.prompt_logprobs is not None:
                first = max(start, len(r.out.prompt_logprobs))
                targets = r.known[first + 1 : min(end + 1, len(job.prompt))]
                n_head += len(targets)
        elif job.want.startswith("embed"):
            n_head = 0
        return Slice(
            r.id,
            start,
            pack_ids(ids),
            tuple(pack_ids(table) for table in r.tables),
            n_head,
            len(drafts),
            pack_ids(targets),
            None if job.mask is None or not n_head else job.mask * (1 + len(drafts)),
        )

    def _reserve(self, r: _Running, positions: int) -> None:
        if not r.tables:
            r.tables = [[] for _ in self.free]
        for table, free in zip(r.tables, self.free, strict=True):
            while len(table) * BLOCK_TOKENS < positions:
                table.append(int(free.pop(int(self.rng.integers(len(free))))))

    def _drop_dead(self, r: _Running) -> None:
        """Give back what a window has left behind, as the engine does: -1 in the table, NaN in the block."""
        for index, group in enumerate(self.config.kv_groups):
            dead = max(0, r.computed - group.window + 1) // BLOCK_TOKENS if group.kind == "window" else 0
            for entry in range(dead):
                block = r.tables[index][entry]
                if block >= 0:
                    self.runner.poison(index, block)  # type: ignore[attr-defined]
                    self.free[index].append(block)
                    r.tables[index][entry] = -1


def _state(r: _Running) -> RequestState:
    job = r.job
    n_prompt = len(job.prompt)
    return RequestState(
        r.id,
        job.choice,
        job.seed,
        pack_ids(r.known),
        n_prompt,
        job.params,
        want=job.want,
        ends=pack_ids(job.ends),
        bad=tuple(map(pack_ids, job.bad)),
    )


def _commit(r: _Running, piece: Slice, got: SliceOutput, vocab: int) -> None:
    out = r.out
    out.error = got.error
    out.ids += got.ids
    r.known += got.ids
    out.accepted += got.accepted
    out.logprobs += got.logprobs or ()
    out.scores += got.scores or ()
    out.prompt_logprobs += got.prompt_logprobs or ()
    if got.logits is not None:
        out.logits += list(np.frombuffer(got.logits, np.float32).reshape(-1, vocab))
    if got.vector is not None:
        out.vector = np.frombuffer(got.vector, np.float32)
    r.computed = piece.start + piece.n - (piece.n_drafts - got.accepted)
