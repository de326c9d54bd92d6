"""An engine on the null backend, and what must come out of it, computed without any engine."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec

from spola.backends.null import NullRunner
from spola.backends.shapes import static
from spola.core.params import SamplingParams
from spola.core.runner import Capabilities, KvGroup, RunnerConfig
from spola.core.step import RequestState, Slice, Step, StepOutput, pack_ids
from spola.engine.engine import Engine
from spola.engine.events import Event
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler

VOCAB = 40

FULL = KvGroup((0,), 1, 4, 4)


def window(w: int) -> KvGroup:
    return KvGroup((1,), 1, 4, 4, "window", w)


def params(max_tokens: int | None = 8, **fields) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **fields)


def request(id: int, prompt: Sequence[int] | int, max_tokens: int | None = 8, **fields) -> Request:
    """``prompt`` may be a length: the ids then depend on it and on ``id``."""
    if isinstance(prompt, int):
        prompt = [(7 * id + 3 * i + i * i) % VOCAB for i in range(prompt)]
    names = {"temperature", "ignore_eos", "stop_token_ids", "logprobs"}
    sampling = {name: fields.pop(name) for name in names & fields.keys()}
    return Request(id=id, ids=prompt, params=params(max_tokens, **sampling), **fields)


def next_token(state: RequestState, ids: Sequence[int]) -> int:
    """The script of the null backend here: any fixed function of all ids, the seed and the choice."""
    key = array("i", ids).tobytes() + bytes([state.seed % 256, state.choice])
    return zlib.crc32(key) % VOCAB


@dataclass
class Expected:
    ids: list[int]
    reason: str


def expected(request: Request, prompt: Sequence[int], limit: int) -> Expected:
    """What a sample request gives that knows at most ``limit`` tokens."""
    state = SimpleNamespace(seed=request.seed, choice=request.choice)
    ids = list(prompt)
    out: list[int] = []
    while True:
        token = next_token(state, ids)
        ids.append(token)
        out.append(token)
        if token in request.eos_ids or token in request.params.stop_token_ids:
            return Expected(out, "stop")
        if len(ids) >= limit or len(out) == request.params.max_tokens:
            return Expected(out, "length")


def alone(r: Request) -> tuple[list[float], bytes, bytes | None]:
    """What a request that samples nothing gives when a runner computes it in one slice."""
    runner = NullRunner(script=next_token)
    config = RunnerConfig(kv_groups=(FULL,), kv_blocks=(4,), max_step_tokens=64, max_seqs=1, max_model_len=64)
    runner.load(SimpleNamespace(vocab=VOCAB, hidden=6), (), config)
    whole = _one_slice(r)
    out = runner.execute(whole).slices[0]
    return list(out.scores or ()), out.logits or b"", out.vector


def _one_slice(r: Request) -> Step:
    n = r.goal
    heads = n - r.head_from if r.want in ("score", "logits") else 0
    targets = pack_ids(r.known[r.head_from + 1 :]) if r.want == "score" else b""
    piece = Slice(r.id, 0, pack_ids(r.known[:n]), (pack_ids(range(-(-n // 32))),), heads, 0, targets)
    return Step(0, (piece,), (r.state(),))


@dataclass
class Result:
    """The events of one request put together."""

    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    logits: bytes = b""
    vector: bytes | None = None
    finals: list[Event] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        return self.finals[-1].finish_reason if self.finals else None

    def take(self, event: Event) -> None:
        assert not self.finals, f"request {event.id} had an event after its final one"
        self.ids += event.ids
        self.scores += event.scores or ()
        self.logits += event.logits or b""
        self.vector = event.vector or self.vector
        if event.final:
            self.finals.append(event)


class Rig:
    """One engine, its recorded steps and the results so far; time advances by one per step."""

    def __init__(
        self,
        *,
        blocks: int | tuple[int, ...] = 64,
        groups: tuple[KvGroup, ...] = (FULL,),
        block_size: int = 4,
        rows: int = 32,
        seqs: int = 8,
        max_len: int = 200,
        chunk: int | None = None,
        watermark: float = 0.0,
        prefix_cache: bool = True,
        capabilities: Capabilities | None = None,
        script=next_token,
        runner: NullRunner | None = None,
        **more,
    ) -> None:
        caps = capabilities or Capabilities(device="null", block_size=block_size, speculation=True)
        self.runner = runner or NullRunner(capabilities=caps, script=script)
        counts = (blocks,) * len(groups) if isinstance(blocks, int) else blocks
        config = RunnerConfig(
            kv_groups=groups, kv_blocks=counts, max_step_tokens=rows, max_seqs=seqs, max_model_len=max_len
        )
        self.runner.load(SimpleNamespace(vocab=VOCAB, hidden=6), (), config)
        limits = Limits(
            max_step_tokens=rows,
            max_seqs=seqs,
            max_model_len=max_len,
            chunk=chunk,
            watermark=watermark,
            prefix_cache=prefix_cache,
            **more,
        )
        self.scheduler = Scheduler(limits, self.runner.capabilities, groups, counts, check=True)
        self.steps: list[Step] = []
        self.engine = Engine(self.runner, self.scheduler, vocab=VOCAB, record=self._record)
        self.results: dict[int, Result] = {}
        self.now = 0.0

    def _record(self, step: Step, output: StepOutput) -> None:
        self.steps.append(step)

    def add(self, *requests: Request) -> None:
        for r in requests:
            self.engine.add(r)

    def take(self, events: list[Event]) -> None:
        for event in events:
            self.results.setdefault(event.id, Result()).take(event)

    def step(self) -> Step | None:
        """One step of the engine; the Step that ran."""
        n = len(self.steps)
        self.take(self.engine.step(self.now))
        self.now += 1.0
        return self.steps[-1] if len(self.steps) > n else None

    def finish(self, most: int = 5000) -> dict[int, Result]:
        for _ in range(most):
            if not self.engine.has_work:
                self.take(self.scheduler.drain())
                return self.results
            self.step()
        raise AssertionError(f"not finished after {most} steps: {self.scheduler.requests}")


def shapes(step: Step) -> list[tuple[int, int, int]]:
    """(id, start, rows) of each slice."""
    return [(s.id, s.start, s.n) for s in step.slices]


def small_static(chunk: int = 8, block_size: int = 4, max_total_context: int = 120) -> Capabilities:
    """The static shapes with a chunk that small tests can fill."""
    caps = static(Capabilities(device="null", block_size=block_size), max_total_context=max_total_context)
    return msgspec.structs.replace(caps, prefill_chunk=chunk)
