"""The reference Runner: one Step at a time, in NumPy.

``ReferenceRunner`` is the definition in f32; ``QuantizedReferenceRunner`` emulates the arithmetic of the
native kernels. Both keep K and V in paged blocks and the requests' penalty counts and pooling sums.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from spola.backends.reference.arrays import F32, Bool
from spola.backends.reference.batch import make_batch
from spola.backends.reference.blocks import QUANTIZED
from spola.backends.reference.cache import KvCache
from spola.backends.reference.maths import F32Maths, Maths
from spola.backends.reference.model import Model
from spola.backends.reference.quantized import QuantizedMaths
from spola.backends.reference.sampling import (
    Live,
    choose,
    draft_uniform,
    log_sum_exp,
    target_uniform,
    token_logprob,
    verify,
)
from spola.backends.shapes import StepError, check_step, static
from spola.core.errors import ModelError, RequestError
from spola.core.runner import Adapter, Capabilities, RunnerConfig, Tensor
from spola.core.step import Slice, SliceOutput, Step, StepOutput, TokenLogprob, unpack_ids
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import manifest

__all__ = ["QuantizedReferenceRunner", "ReferenceRunner"]

_NOT_FINITE = "the model gave values that are not finite for this request; its weights may be damaged"


class ReferenceRunner:
    """Runs a model in NumPy.

    ``mode`` f32: weights decoded to f32, plain arithmetic, activations never quantized, so that ``precise``
    has nothing to change. quantized: docs/numerics.md to the letter, the same bits in any batch.
    ``static_shapes``: takes the shapes of a static-shape device only, and raises StepError on any other.
    """

    def __init__(self, *, mode: Literal["f32", "quantized"] = "f32", static_shapes: bool = False) -> None:
        self._mode = mode
        plain = Capabilities(
            device="cpu",
            dtypes=("f32",) if mode == "f32" else ("int8", "int16", "f32"),
            weight_formats=("F32", "F16", "BF16", "F8_E4M3", *sorted(QUANTIZED)),
            invariant=mode == "quantized",
            speculation=True,
            adapters=True,
        )
        self.capabilities = static(plain) if static_shapes else plain
        self._model: Model | None = None
        self._cache: KvCache | None = None
        self._config: RunnerConfig | None = None
        self._live: dict[int, Live] = {}
        self._held: dict[int, F32] = {}

    def load(self, spec: DecoderSpec, tensors: Iterable[Tensor], config: RunnerConfig) -> None:
        """Take the model in. Raises ModelError naming the tensor or part, CapacityError with the numbers."""
        maths: Maths = F32Maths() if self._mode == "f32" else QuantizedMaths(precise=config.precise)
        cache = KvCache(config.kv_groups, config.kv_blocks)
        homeless = set(range(len(spec.layers))) - cache.place.keys()
        if homeless:
            raise ValueError(f"layer {min(homeless)} is in no KV group")
        with np.errstate(all="ignore"):
            self._model = Model(spec, tensors, maths, cache, config.max_model_len)
        self._cache, self._config = cache, config

    def memory(self) -> dict[str, int]:
        """Bytes of the unpacked weights, of the cache, and of the logits of a full step."""
        model, cache, config = self._loaded()
        logits = 4 * model.vocab * config.max_seqs
        return {"weights": model.nbytes, "kv": cache.nbytes, "workspace": logits}

    def poison(self, group: int, block: int) -> None:
        """Fill a KV block with NaN: what tests put into blocks that nobody may read."""
        self._loaded()[1].poison(group, block)

    def close(self) -> None:
        """Free everything; further calls are errors."""
        self._model = self._cache = self._config = None
        self._live.clear()
        self._held.clear()

    def add_adapter(self, adapter: Adapter) -> None:
        model, _, config = self._loaded()
        if adapter.rank > config.max_lora_rank:
            raise ModelError(
                f"adapter {adapter.name!r}: a rank of {adapter.rank} is above the most of "
                f"{config.max_lora_rank}"
            )
        model.adapters.add(adapter, {info.name: info for info in manifest(model.spec)})

    def drop_adapter(self, name: str) -> None:
        if any(live.state.adapter == name for live in self._live.values()):
            raise ValueError("a request still has the adapter")
        self._loaded()[0].adapters.drop(name)

    def hold(self, handle: int, weights: bytes) -> None:
        """See ``core.runner.DraftHolder``."""
        rows = np.frombuffer(weights, np.float32)
        vocab = self._loaded()[0].vocab
        if handle < 1 or not len(rows) or len(rows) % vocab:
            raise StepError(f"draft distributions {handle}: no whole rows, or a handle below 1")
        rows = rows.reshape(-1, vocab)
        sums = rows.sum(axis=1, dtype=np.float64)
        if not ((rows >= 0).all() and np.isfinite(sums).all() and (sums > 0).all()):
            raise StepError(f"draft distributions {handle}: a row is no distribution of drafts")
        self._held[handle] = rows

    def adopt(self, handle: int, source: Any) -> None:
        """See ``core.runner.DraftHolder``; ``source`` is a ReferenceRunner."""
        rows = source._held.pop(handle, None) if isinstance(source, ReferenceRunner) else None
        if rows is None:
            raise StepError(f"draft distributions {handle}: nothing is held there")
        ours = np.zeros((len(rows), self._loaded()[0].vocab), np.float32)
        both = min(ours.shape[1], rows.shape[1])
        ours[:, :both] = rows[:, :both]
        self.hold(handle, ours.tobytes())

    def drop(self, handle: int) -> None:
        """See ``core.runner.DraftHolder``."""
        self._held.pop(handle, None)

    def execute(self, step: Step) -> StepOutput:
        """Run one Step. Raises StepError for a step no scheduler should have made."""
        began = time.perf_counter()
        model, cache, config = self._loaded()
        for gone in step.gone:
            self._live.pop(gone, None)
        for state in step.new:
            self._live[state.id] = Live(state, model.vocab, model.hidden)
        goals = {piece.id: self._live[piece.id].n_known for piece in step.slices}
        check_step(step, self.capabilities, config, goals=goals)
        for piece in step.slices:
            if piece.proposals and len(self._held.get(piece.proposals, ())) < piece.n_drafts:
                raise StepError(f"step {step.index}, request {piece.id}: nothing is held for its drafts")
        cache.prepare(step.copies, step.zero)
        outputs: dict[int, SliceOutput] = {}
        for piece in step.slices:
            wrong = [i for i in unpack_ids(piece.ids) if not 0 <= i < model.vocab]
            if wrong:
                message = f"token id {wrong[0]} is outside of the vocabulary of {model.vocab}"
                outputs[piece.id] = SliceOutput(error=message)
            elif problem := self._live[piece.id].problem:
                outputs[piece.id] = SliceOutput(error=problem)
            elif (name := self._live[piece.id].state.adapter) is not None and name not in model.adapters:
                outputs[piece.id] = SliceOutput(error=f"adapter {name!r} is not loaded")
        good = [piece for piece in step.slices if piece.id not in outputs]
        if good:
            with np.errstate(all="ignore"):
                outputs |= self._forward(model, good, len(config.kv_groups))
        for piece in step.slices:
            if piece.n_drafts:
                self._held.pop(piece.proposals, None)
        done = tuple(outputs[piece.id] for piece in step.slices)
        return StepOutput(elapsed_s=time.perf_counter() - began, slices=done)

    def _loaded(self) -> tuple[Model, KvCache, RunnerConfig]:
        if self._model is None or self._cache is None or self._config is None:
            raise RuntimeError("the runner holds no model: load() comes first, close() ends it")
        return self._model, self._cache, self._config

    def _forward(self, model: Model, slices: list[Slice], n_groups: int) -> dict[int, SliceOutput]:
        batch = make_batch(slices, n_groups)
        bad = np.zeros(batch.n_rows, np.bool_)
        model.adapters.begin([(batch.rows(i), self._live[s.id].state.adapter) for i, s in enumerate(slices)])
        x = model.hidden_states(batch, bad)
        headed = np.concatenate(
            [np.arange(batch.first[i + 1] - s.n_head, batch.first[i + 1]) for i, s in enumerate(slices)]
        )
        normed = model.final_norm(x)
        head_bad = np.zeros(len(headed), np.bool_)
        logits = (
            model.logits(normed[headed], head_bad) if len(headed) else np.zeros((0, model.vocab), np.float32)
        )
        bad[headed] |= head_bad | ~np.isfinite(logits).all(axis=1)
        out: dict[int, SliceOutput] = {}
        used = 0
        for index, piece in enumerate(slices):
            rows = logits[used : used + piece.n_head]
            used += piece.n_head
            out[piece.id] = self._finish(piece, rows, normed[batch.rows(index)], bad[batch.rows(index)])
        return out

    def _finish(self, piece: Slice, logits: F32, normed: F32, bad: Bool) -> SliceOutput:
        """What one slice gave: logits [n_head, vocab], normed hidden states [n, hidden]."""
        live = self._live[piece.id]
        if bad.any():
            return SliceOutput(error=_NOT_FINITE)
        try:
            match live.state.want:
                case "sample":
                    if piece.proposals and not piece.n_drafts:
                        return self._propose(piece, live, logits[-1])
                    return _sample(piece, live, logits, self._held.get(piece.proposals))
                case "score":
                    return _score(piece, logits)
                case "logits":
                    return SliceOutput(logits=logits.tobytes())
                case "embed_last" | "embed_mean":
                    return _embed(piece, live, normed)
        except RequestError as error:
            return SliceOutput(error=str(error))

    def _propose(self, piece: Slice, live: Live, logits: F32) -> SliceOutput:
        """Draw a draft and hold what it was drawn from."""
        position = piece.start + piece.n
        words = None if piece.masks is None else np.frombuffer(piece.masks, "<u4")
        choice = choose(logits, live, position, words)
        token = choice.draw(draft_uniform(live, position))
        live.accept(token)
        before = self._held.get(piece.proposals, np.zeros((0, len(logits)), np.float32))
        self._held[piece.proposals] = np.concatenate([before, choice.spread()[None]])
        return SliceOutput(ids=(token,))


class QuantizedReferenceRunner(ReferenceRunner):
    """The reference in its quantized mode: what the native backend is held to."""

    def __init__(self, *, static_shapes: bool = False) -> None:
        super().__init__(mode="quantized", static_shapes=static_shapes)


def _sample(piece: Slice, live: Live, logits: F32, held: F32 | None) -> SliceOutput:
    """Draw after each head row; go on as long as the draw equals the draft that follows.

    Rows that have targets come first, and nothing is drawn after them. ``held``: the distributions of the
    drafts, for rejection mode.
    """
    params = live.state.params
    wanted = params.logprobs
    targets = unpack_ids(piece.targets)
    for target in targets:
        if not 0 <= target < logits.shape[1]:
            raise RequestError(f"token id {target} is outside of the vocabulary of {logits.shape[1]}")
    prompt = tuple(
        token_logprob(row, target, params.prompt_logprobs or 0)
        for row, target in zip(logits, targets, strict=False)
    )
    logits = logits[len(targets) :]
    drafts = unpack_ids(piece.ids)[piece.n - piece.n_drafts :]
    words = None if piece.masks is None else np.frombuffer(piece.masks, "<u4").reshape(piece.n_samples, -1)
    ids: list[int] = []
    accepted = 0
    logprobs: list[TokenLogprob] = []
    for j, row in enumerate(logits):
        position = piece.start + piece.n - piece.n_samples + j + 1
        choice = choose(row, live, position, None if words is None else words[j])
        good = False
        if held is not None and j < len(drafts):
            token, good = verify(choice, live, position, drafts[j], held[j])
        else:
            token = choice.draw(target_uniform(live, position))
            good = j < len(drafts) and token == drafts[j]
        live.accept(token)
        ids.append(token)
        if wanted is not None:
            listed = choice.processed() if params.logprobs_mode == "processed" else row
            logprobs.append(token_logprob(listed, token, wanted))
        accepted += good
        if not good:
            break
    return SliceOutput(
        ids=tuple(ids),
        accepted=accepted,
        logprobs=None if wanted is None or not ids else tuple(logprobs),
        prompt_logprobs=prompt or None,
    )


def _score(piece: Slice, logits: F32) -> SliceOutput:
    targets = unpack_ids(piece.targets)
    for target in targets:
        if not 0 <= target < logits.shape[1]:
            raise RequestError(f"token id {target} is outside of the vocabulary of {logits.shape[1]}")
    return SliceOutput(
        scores=tuple(float(row[t]) - log_sum_exp(row) for row, t in zip(logits, targets, strict=True))
    )


def _embed(piece: Slice, live: Live, normed: F32) -> SliceOutput:
    """The last hidden state after the final norm, or the mean over all rows, once the last is reached."""
    if not np.isfinite(normed).all():
        return SliceOutput(error=_NOT_FINITE)
    if live.state.want == "embed_mean":
        for row in normed:
            live.pooled += row
    if piece.start + piece.n < live.n_known:
        return SliceOutput()
    vector = (
        normed[-1] if live.state.want == "embed_last" else (live.pooled / live.n_known).astype(np.float32)
    )
    return SliceOutput(vector=vector.tobytes())
