"""Everything that crosses between the engine and a backend: plain data down, plain data up.

A ``Step`` says what to compute now, a ``StepOutput`` what came of it. Both serialize (``encode``,
``decode``) and a recorded sequence of Steps replays to equal bits. The engine owns block *ids*, the
backend owns block *memory*; no callback and no shared mutable object crosses.

Token ids and block tables travel as bytes of little-endian int32: ``pack_ids`` and ``unpack_ids``.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

from spola.core.params import SamplingParams

__all__ = [
    "BlockCopy",
    "RequestState",
    "Slice",
    "SliceOutput",
    "Step",
    "StepOutput",
    "TokenLogprob",
    "Want",
    "decode_step",
    "encode_step",
    "pack_ids",
    "unpack_ids",
]

if sys.byteorder != "little":  # pragma: no cover - no such machine in the tests
    raise ImportError("spola needs a little-endian machine; this one is big-endian")

Want = Literal["sample", "score", "embed_last", "embed_mean", "logits"]


def pack_ids(ids: Iterable[int]) -> bytes:
    """int32 little-endian bytes of ``ids``."""
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> array[int]:
    """The inverse of ``pack_ids``."""
    out = array("i")
    out.frombytes(data)
    return out


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    """What a backend must know of a request beyond one slice of it.

    Sent when the request is first scheduled and again after a preemption. Penalty counts and pooling
    sums live in the backend from then until ``id`` appears in ``Step.gone``.
    """

    id: int  # unique per engine and choice; never reused
    choice: int  # index of this choice among the n of its request
    seed: int  # 0 <= seed < 2**64
    ids: bytes  # int32: all known ids, prompt first
    n_prompt: int  # of those, how many are the prompt
    params: SamplingParams
    adapter: str | None = None
    want: Want = "sample"
    ends: bytes = b""  # int32: ids that cannot be drawn before params.min_tokens are generated
    bad: tuple[bytes, ...] = ()  # int32 each: sequences that the output must not complete


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive tokens of one request to compute in this step.

    Row i of the slice is position ``start + i``. The last ``n_head`` rows get logits. A sampling slice that
    reaches the end of the known tokens samples on its last ``1 + n_drafts`` rows, another one on none. Head
    rows before these have ``targets``: the prompt ids after them, whose log-probabilities are asked for.
    Drafts are verified in match mode (accepted where they equal what is drawn anyway) or, with
    ``proposals``, in rejection mode: exact in distribution. ``proposals`` without drafts asks for a draft:
    the token is drawn with the random number of drafts, and what it was drawn from is held by the backend.
    """

    id: int
    start: int  # absolute position of the first row
    ids: bytes  # int32[n]: token ids, drafts last
    tables: tuple[bytes, ...]  # one per KvGroup: int32 block ids covering positions [0, start + n)
    n_head: int = 0
    n_drafts: int = 0
    targets: bytes = b""  # int32: ids to score, for want "score" one per head row
    masks: bytes | None = None  # uint32[n_samples, ceil(V / 32)], bit set = allowed
    proposals: int = 0  # handle of the distributions that drafts are drawn from; 0 = match mode

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.ids) // 4

    @property
    def n_samples(self) -> int:
        """Head rows without a target: those that a sampling slice draws from."""
        return self.n_head - len(self.targets) // 4


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy block ``source`` to ``target`` in one KvGroup. All sources are read before any write."""

    group: int
    source: int
    target: int


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What to compute now. ``slices`` are in rank order, at most one per request."""

    index: int  # counts the steps of an engine from 0
    slices: tuple[Slice, ...]
    new: tuple[RequestState, ...] = ()
    gone: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    zero: tuple[tuple[int, int], ...] = ()  # (group, block) to clear before the step

    @property
    def n_rows(self) -> int:
        return sum(s.n for s in self.slices)


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a chosen token under the raw distribution, with the best alternatives.

    ``top`` is sorted by falling log-probability, ties by id; natural logarithm.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SliceOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one slice gave. ``error`` ends the request, and only that request."""

    ids: tuple[int, ...] = ()  # 0..k+1 new ids: none for an unfinished prompt, else accepted drafts + 1
    accepted: int = 0  # how many of the drafts were accepted
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per new id, when asked for
    scores: tuple[float, ...] | None = None  # log-probability of each target
    vector: bytes | None = None  # f32[hidden], for the embed wants, when the last row is reached
    logits: bytes | None = None  # f32[n_head, V], for want "logits"
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # one per target of a sampling slice


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What came of a Step; ``slices`` are parallel to ``Step.slices``."""

    elapsed_s: float
    slices: tuple[SliceOutput, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Step)


def encode_step(step: Step) -> bytes:
    """MessagePack bytes of ``step``; ``decode_step`` gives an equal Step back in any process."""
    return _encoder.encode(step)


def decode_step(data: bytes) -> Step:
    """The inverse of ``encode_step``. Raises msgspec.DecodeError on foreign bytes."""
    return _decoder.decode(data)
