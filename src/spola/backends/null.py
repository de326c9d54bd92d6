"""NullRunner: a backend without a model, in virtual time. For simulation and the tests of what is above it.

Every token is a function of all ids before it, so that it does not depend on batch, chunk or blocks. With
``strict`` (the default) each Step is held against the Capabilities, and a fake KV cache, which keeps one
number per position, against what the request must have there: a block freed too early, shared wrongly or
never written raises StepError. Nothing is sampled: a seed counts unless greedy, masks are obeyed, other
sampling settings have no effect.

Its distribution: the next token has logit 0, every other id -1.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spola.backends.shapes import StepError, check_step, static
from spola.core.errors import ConfigError
from spola.core.runner import BLOCK_TOKENS, Adapter, Capabilities, RunnerConfig, Tensor
from spola.core.step import (
    RequestState,
    Slice,
    SliceOutput,
    Step,
    StepOutput,
    TokenLogprob,
    unpack_ids,
)

__all__ = ["Cost", "NullRunner", "Script"]

Script = Callable[[RequestState, Sequence[int]], int]

_MASK64 = 2**64 - 1
_ROOT = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step: the slower of memory and arithmetic, and a fixed part.

    The defaults are a model of 100 MB and 270 MFLOP per token on a small machine.
    """

    weight_bytes: float = 1e8
    flops_per_token: float = 2.7e8
    bytes_per_s: float = 2e10
    flops_per_s: float = 2e11
    fixed_s: float = 1e-4

    def seconds(self, rows: int, kv_bytes: float) -> float:
        """Time of a step of ``rows`` rows that reads ``kv_bytes`` of cache."""
        memory = (self.weight_bytes + kv_bytes) / self.bytes_per_s
        return self.fixed_s + max(memory, rows * self.flops_per_token / self.flops_per_s)


@dataclass(slots=True)
class _Held:
    """What the backend keeps of a request: ``chain[i]`` stands for ids 0 .. i, ``sums`` for its pooling."""

    state: RequestState
    ids: array[int]
    chain: list[int] = field(default_factory=list)
    sums: list[int] | None = None
    pooled: int = 0

    def upto(self, n: int) -> None:
        while len(self.chain) < n:
            before = self.chain[-1] if self.chain else _ROOT
            self.chain.append(_link(before, self.ids[len(self.chain)]))


class NullRunner:
    """Runner without arithmetic.

    ``script(state, ids)`` gives the token after ``ids`` instead of the hash. ``static`` takes static shapes
    only. ``capabilities`` replaces them altogether (``block_size`` and ``static`` are then not looked at).
    ``strict`` False skips the checks and the fake cache: a simulator needs neither.
    """

    def __init__(
        self,
        *,
        block_size: int = BLOCK_TOKENS,
        static: bool = False,
        capabilities: Capabilities | None = None,
        script: Script | None = None,
        cost: Cost | None = None,
        strict: bool = True,
    ) -> None:
        self.capabilities = capabilities or _capabilities(block_size, static)
        self.steps = 0
        self._script = script
        self._cost = cost or Cost()
        self._strict = strict
        self._held: dict[int, _Held] = {}
        self._cells: list[array[int]] = []
        self._config: RunnerConfig | None = None
        self._vocab = 0
        self._hidden = 0

    @property
    def held(self) -> set[int]:
        """Ids of the requests whose state is here: those that came and are not gone."""
        return set(self._held)

    def load(self, spec: Any, tensors: Iterable[Tensor], config: RunnerConfig) -> None:
        """Takes ``spec.vocab`` and, if there is one, ``spec.hidden``; looks at no tensor."""
        if self._config is not None:
            raise RuntimeError("a runner is loaded once")
        self._vocab = spec.vocab
        self._hidden = getattr(spec, "hidden", 8)
        self._config = config
        size = self.capabilities.block_size if self._strict else 0
        self._cells = [array("Q", [0]) * (n * size) for n in config.kv_blocks]

    def execute(self, step: Step) -> StepOutput:
        """Raises StepError on a Step outside the Capabilities or on a cache that is not what it must be."""
        config = self._config
        if config is None:
            raise RuntimeError("execute before load or after close")
        for gone in step.gone:
            self._held.pop(gone, None)
        for state in step.new:
            if state.id in self._held:
                raise StepError(f"step {step.index}: request {state.id} is new but known")
            self._held[state.id] = _Held(state, unpack_ids(state.ids))
        if len(self._held) > config.max_seqs:
            raise StepError(f"step {step.index}: {len(self._held)} live requests, at most {config.max_seqs}")
        for piece in step.slices:
            self._check_ids(step, piece)
        if self._strict:
            check_step(step, self.capabilities, config, goals={i: _goal(h) for i, h in self._held.items()})
            self._copy(step)
            for piece in step.slices:
                self._write(piece)
            for piece in step.slices:
                self._read(step, piece, config)
        outs = tuple(self._output(piece) for piece in step.slices)
        self.steps += 1
        per_token = sum(group.bytes_per_token for group in config.kv_groups)
        context = sum(piece.start + piece.n for piece in step.slices)
        return StepOutput(self._cost.seconds(step.n_rows, context * per_token), outs)

    def add_adapter(self, adapter: Adapter) -> None:
        raise ConfigError(f"adapter {adapter.name!r}: this backend computes nothing and has no adapters")

    def drop_adapter(self, name: str) -> None:
        """There are none."""

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "kv": sum(8 * len(cells) for cells in self._cells), "workspace": 0}

    def close(self) -> None:
        self._config = None
        self._held.clear()
        self._cells.clear()

    # The fake KV cache: one number per position, which stands for all ids up to it.

    def _check_ids(self, step: Step, piece: Slice) -> None:
        held = self._held.get(piece.id)
        if held is None:
            raise StepError(f"step {step.index}: request {piece.id} was never new")
        end = piece.start + piece.n - piece.n_drafts
        if unpack_ids(piece.ids)[: piece.n - piece.n_drafts] != held.ids[piece.start : end]:
            raise StepError(
                f"step {step.index}, request {piece.id}: the ids are not those from {piece.start}"
            )
        if held.state.want == "sample" and piece.n_samples != (1 + piece.n_drafts) * (end == len(held.ids)):
            raise StepError(
                f"step {step.index}, request {piece.id}: {piece.n_samples} rows to sample at {end}"
            )
        if piece.proposals:
            raise StepError(f"step {step.index}, request {piece.id}: this backend holds no distributions")
        held.upto(end)

    def _copy(self, step: Step) -> None:
        size = self.capabilities.block_size
        read = [(c, self._cells[c.group][c.source * size : (c.source + 1) * size]) for c in step.copies]
        for copy, cells in read:
            self._cells[copy.group][copy.target * size : (copy.target + 1) * size] = cells
        for group, block in step.zero:
            self._cells[group][block * size : (block + 1) * size] = array("Q", [0]) * size

    def _write(self, piece: Slice) -> None:
        values = self._chain(piece)
        size = self.capabilities.block_size
        for cells, packed in zip(self._cells, piece.tables, strict=True):
            table = unpack_ids(packed)
            for position, value in enumerate(values, start=piece.start):
                cells[table[position // size] * size + position % size] = value

    def _read(self, step: Step, piece: Slice, config: RunnerConfig) -> None:
        want = self._held[piece.id].chain[: piece.start] + self._chain(piece)
        size = self.capabilities.block_size
        for index, (group, cells) in enumerate(zip(config.kv_groups, self._cells, strict=True)):
            table = unpack_ids(piece.tables[index])
            first = max(0, piece.start - group.window + 1) if group.kind == "window" else 0
            for position in range(first, piece.start + piece.n):
                found = cells[table[position // size] * size + position % size]
                if found != want[position]:
                    what = "was never written" if found == 0 else "holds another text"
                    raise StepError(
                        f"step {step.index}, request {piece.id}, KV group {index}: position {position} "
                        f"(block {table[position // size]}) {what}"
                    )

    def _chain(self, piece: Slice) -> list[int]:
        """The values of the slice's rows, drafts included."""
        chain = self._held[piece.id].chain
        end = piece.start + piece.n - piece.n_drafts
        values = chain[piece.start : end]
        for token in unpack_ids(piece.ids)[piece.n - piece.n_drafts :]:
            values.append(_link(values[-1], token))
        return values

    # Outputs

    def _output(self, piece: Slice) -> SliceOutput:
        held = self._held[piece.id]
        want = held.state.want
        if want == "sample":
            out = self._sample(held, piece) if piece.n_samples else SliceOutput()
            return self._with_prompt(held, piece, out) if piece.targets else out
        first = piece.start + piece.n - piece.n_head
        if want == "score":
            rows = zip(range(first, first + piece.n_head), unpack_ids(piece.targets), strict=True)
            return SliceOutput(scores=tuple(self._logprob(t == self._next(held, p + 1)) for p, t in rows))
        if want == "logits":
            logits = array("f")
            for position in range(first, first + piece.n_head):
                row = array("f", [-1.0]) * self._vocab
                row[self._next(held, position + 1)] = 0.0
                logits += row
            return SliceOutput(logits=logits.tobytes() if piece.n_head else None)
        return self._embed(held, piece)

    def _sample(self, held: _Held, piece: Slice) -> SliceOutput:
        """Match-mode verification: the drafts that are what would have come anyway, and one token more."""
        drafts = unpack_ids(piece.ids)[piece.n - piece.n_drafts :]
        words = (self._vocab + 31) // 32
        new: list[int] = []
        logprobs: list[TokenLogprob] = []
        for row in range(piece.n_samples):
            best = self._next(held, len(held.ids))
            token: int | None = best
            if piece.masks is not None:
                token = _allowed(piece.masks[4 * words * row : 4 * words * (row + 1)], best, self._vocab)
            if token is None:
                return SliceOutput(error="the mask allows no token")
            new.append(token)
            logprobs.append(self._listed(token, best, held.state.params.logprobs or 0))
            held.ids.append(token)
            if row < len(drafts) and drafts[row] != token:
                break
        wanted = held.state.params.logprobs is not None
        return SliceOutput(
            ids=tuple(new), accepted=len(new) - 1, logprobs=tuple(logprobs) if wanted else None
        )

    def _with_prompt(self, held: _Held, piece: Slice, out: SliceOutput) -> SliceOutput:
        first = piece.start + piece.n - piece.n_head
        listed = []
        for place, target in enumerate(unpack_ids(piece.targets), start=first + 1):
            listed.append(
                self._listed(target, self._next(held, place), held.state.params.prompt_logprobs or 0)
            )
        return msgspec.structs.replace(out, prompt_logprobs=tuple(listed))

    def _embed(self, held: _Held, piece: Slice) -> SliceOutput:
        """Element j of a position's vector is a 16-bit field of its number; the mean is over positions."""
        rows = range(piece.start, piece.start + piece.n)
        if held.state.want == "embed_mean":
            if held.sums is None:
                held.sums = [0] * self._hidden
            if held.pooled != piece.start:
                raise StepError(
                    f"request {piece.id}: {held.pooled} positions pooled, the slice is at {piece.start}"
                )
            for position in rows:
                for j in range(self._hidden):
                    held.sums[j] += _element(held.chain[position], j)
            held.pooled += piece.n
        if rows.stop < len(held.ids):
            return SliceOutput()
        last = [_element(held.chain[rows.stop - 1], j) for j in range(self._hidden)]
        sums, n = (last, 1) if held.sums is None else (held.sums, held.pooled)
        return SliceOutput(vector=array("f", [value / n / 65536 for value in sums]).tobytes())

    def _next(self, held: _Held, n: int) -> int:
        """The token after the first ``n`` ids."""
        if self._script is not None:
            return self._script(held.state, held.ids[:n])
        held.upto(n)
        value = held.chain[n - 1]
        if not held.state.params.greedy:
            value = _link(_link(value, held.state.seed), held.state.choice)
        return _mix(value) % self._vocab

    def _logprob(self, best: bool) -> float:
        return (0.0 if best else -1.0) - math.log1p((self._vocab - 1) * math.exp(-1.0))

    def _listed(self, token: int, best: int, n: int) -> TokenLogprob:
        others = (i for i in range(self._vocab) if i != best)
        order = [best, *(i for i, _ in zip(others, range(n - 1)))] if n else []
        return TokenLogprob(
            token, self._logprob(token == best), tuple((i, self._logprob(i == best)) for i in order)
        )


def _capabilities(block_size: int, shapes: bool) -> Capabilities:
    caps = Capabilities(device="null", block_size=block_size, invariant=True, speculation=not shapes)
    return static(caps) if shapes else caps


def _goal(held: _Held) -> int:
    return len(held.ids) - 1 if held.state.want == "score" else len(held.ids)


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of ``value`` reaches every bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _link(before: int, token: int) -> int:
    """The number of a text from that of the text before its last id; never 0, which means unwritten."""
    return _mix((before * 3 + token * _ROOT + 1) & _MASK64) or 1


def _element(value: int, j: int) -> int:
    return (value >> (j * 7 % 48)) & 0xFFFF


def _allowed(mask: bytes, token: int, vocab: int) -> int | None:
    """The first id from ``token`` on, wrapping around, whose bit is set."""
    for step in range(vocab):
        candidate = (token + step) % vocab
        if mask[candidate // 8] >> (candidate % 8) & 1:
            return candidate
    return None
