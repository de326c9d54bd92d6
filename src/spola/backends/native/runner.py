"""NativeRunner: loads a DecoderSpec into the C++ decoder and runs each Step as one call into it.

Python here only converts: tensors go in one at a time, a Step goes down as tuples and comes back as
SliceOutputs. The layouts of the tuples are those of native/src/bind_step.cc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import astuple

from spola import _native
from spola.backends.native.footprint import footprint, loading_bytes, packed_bytes
from spola.backends.native.lower import lower
from spola.backends.native.probe import requested_isa
from spola.backends.native.supported import check
from spola.backends.native.tensors import take
from spola.backends.shapes import StepError, outside_ids
from spola.core import flags
from spola.core.dtype import BY_NAME
from spola.core.errors import CapacityError, ConfigError, ModelError
from spola.core.runner import Adapter, Capabilities, KvGroup, RunnerConfig, Tensor
from spola.core.step import RequestState, SliceOutput, Step, StepOutput, TokenLogprob, Want
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import manifest

__all__ = ["NativeRunner"]

_WANTS: dict[Want, int] = {"sample": 0, "score": 1, "embed_last": 2, "embed_mean": 3, "logits": 4}
_KV_TYPES = {"f32": 0, "f16": 1, "int8": 2}  # kernels/attention.h: KvType
_TILE_ROWS = 16


class NativeRunner:
    """Runner on this processor. See ``core.runner.Runner`` for the contract of each method."""

    capabilities = Capabilities(
        device="cpu",
        weight_formats=tuple(BY_NAME),
        invariant=True,
        speculation=True,
        adapters=True,
    )

    def __init__(self) -> None:
        self._decoder: _native.Decoder | None = None
        self._matrix_names: dict[int, str] = {}
        self._vocab = 0
        self._sites: Mapping[str, int] = {}
        self._adapters: dict[str, int] = {}

    @staticmethod
    def weight_bytes(spec: DecoderSpec, dtypes: Mapping[str, str], *, precise: bool = False) -> int:
        """Bytes that the weights of ``spec`` take once they are packed; ``dtypes`` by canonical name."""
        return sum(
            packed_bytes(info, dtypes[info.name], precise) for info in manifest(spec) if info.name in dtypes
        )

    @staticmethod
    def loading_bytes(spec: DecoderSpec, dtypes: Mapping[str, str], *, precise: bool = False) -> int:
        """The most bytes of weights at a time while they are loaded."""
        return loading_bytes(spec, dtypes, precise)

    @staticmethod
    def footprint(spec: DecoderSpec, dtypes: Mapping[str, str], config: RunnerConfig) -> dict[str, int]:
        """What ``memory`` will tell after a load, to the byte, and "positions" as a part of the weights."""
        return footprint(spec, dtypes, config)

    @staticmethod
    def trim_heap() -> None:
        """Give freed memory of this process back to the system."""
        _native.trim_heap()

    def load(self, spec: DecoderSpec, tensors: Iterable[Tensor], config: RunnerConfig) -> None:
        check(spec)
        for group in config.kv_groups:
            _check_group(group)
        if len(config.kv_blocks) != len(config.kv_groups):
            raise ConfigError("kv_blocks must name one count per KV group")
        decoder = _make_decoder(spec, config)
        with _as_model_error():
            loaded = take(spec, tensors, decoder)
            self._sites = lower(spec, config, decoder, loaded)
        for group, blocks in zip(config.kv_groups, config.kv_blocks, strict=True):
            _add_group(decoder, group, blocks)
        try:
            decoder.finish()
        except ValueError as error:
            raise ModelError(str(error)) from None
        except MemoryError:
            raise CapacityError(
                f"no memory for the working buffers of {config.max_step_tokens} tokens; lower max_step_tokens"
            ) from None
        self._decoder = decoder
        self._matrix_names = {index: name for name, index in loaded.matrices.items()}
        self._vocab = spec.vocab

    def execute(self, step: Step) -> StepOutput:
        """Run one Step. Raises StepError, having changed nothing, for one no scheduler should have made."""
        start = time.perf_counter()
        try:
            results = self._live().execute(
                [self._request(state) for state in step.new],
                list(step.gone),
                [astuple(copy) for copy in step.copies],
                list(step.zero),
                [astuple(piece) for piece in step.slices],
            )
        except ValueError as error:
            raise StepError(f"step {step.index}: {error}") from None
        slices = tuple(
            [
                _output(result) if result[2] is not None or result[7] is not None else SliceOutput(*result)
                for result in results
            ]
        )
        return StepOutput(elapsed_s=time.perf_counter() - start, slices=slices)

    def add_adapter(self, adapter: Adapter) -> None:
        decoder = self._live()
        if adapter.name in self._adapters:
            raise ModelError(f"adapter {adapter.name!r} is there already")
        if not self._sites:
            raise ModelError("no room was made for adapters when the model was loaded")
        number = decoder.add_adapter()
        try:
            for name, part in adapter.parts.items():
                site = self._sites[name]
                decoder.add_adapter_part(number, site, adapter.rank, adapter.scale, part.a, part.b)
        except (ValueError, KeyError) as error:
            decoder.drop_adapter(number)
            raise ModelError(f"adapter {adapter.name!r}, {name}: {error}") from None
        self._adapters[adapter.name] = number

    def drop_adapter(self, name: str) -> None:
        if name in self._adapters:
            self._live().drop_adapter(self._adapters[name])
            del self._adapters[name]

    def memory(self) -> dict[str, int]:
        return self._live().memory()

    def close(self) -> None:
        self._decoder = None

    @property
    def isa(self) -> str:
        """Name of the instruction set that the kernels were chosen for."""
        return self._live().isa

    def counters(self) -> list[dict[str, int]]:
        """What each worker has computed so far: tiles, segments, rows, sampled."""
        return self._live().counters()

    def time_ops(self, on: bool) -> None:
        """From now on keep the time of each op, from zero; or no longer."""
        self._live().time_ops(on)

    def op_times(self) -> list[tuple[str, tuple[str, ...], float]]:
        """(kind, canonical names of its matrices, seconds) of each op in order, while ``time_ops`` is on.

        The kinds of native/src/decoder/program.h, then "head" (norm and logits) and "sample". An expert's
        matrices go by the name of their stack.
        """
        return [
            (kind, tuple(self._matrix_names[index] for index in matrices), seconds)
            for kind, matrices, seconds in self._live().op_times()
        ]

    def poison(self, group: int, block: int) -> None:
        """Fill a KV block with NaN, so that a test sees any read of it."""
        self._live().poison(group, block)

    def hold(self, handle: int, weights: bytes) -> None:
        """See ``core.runner.DraftHolder``."""
        try:
            self._live().hold(handle, weights)
        except ValueError as error:
            raise StepError(f"draft distributions {handle}: {error}") from None

    def adopt(self, handle: int, source: Any) -> None:
        """See ``core.runner.DraftHolder``; ``source`` is a NativeRunner."""
        if not isinstance(source, NativeRunner):
            raise StepError(f"draft distributions {handle}: {type(source).__name__} has other memory")
        try:
            self._live().adopt(handle, source._live())
        except ValueError as error:
            raise StepError(f"draft distributions {handle}: {error}") from None

    def drop(self, handle: int) -> None:
        """See ``core.runner.DraftHolder``."""
        self._live().drop(handle)

    def _live(self) -> _native.Decoder:
        if self._decoder is None:
            raise RuntimeError("the runner is closed, or nothing was loaded into it")
        return self._decoder

    def _request(self, state: RequestState) -> tuple[Any, ...]:
        p = state.params
        bias = tuple((p.logit_bias or {}).items())
        problem = ""
        outside = [token for token, _ in bias if not 0 <= token < self._vocab]
        banned = outside_ids(state, self._vocab)
        adapter = -1 if state.adapter is None else self._adapters.get(state.adapter, -1)
        if state.adapter is not None and adapter < 0:
            problem = f"adapter {state.adapter!r} is not loaded"
        elif outside:
            problem = f"logit_bias: token id {outside[0]} is outside of the vocabulary of {self._vocab}"
            bias = ()
        elif banned:
            problem = banned
        settings = (
            p.temperature,
            p.greedy,
            p.top_p,
            p.top_k,
            p.min_p,
            p.repetition_penalty,
            p.presence_penalty,
            p.frequency_penalty,
            -1 if p.logprobs is None else p.logprobs,
            -1 if p.prompt_logprobs is None else p.prompt_logprobs,
            p.logprobs_mode == "processed",
            p.min_tokens,
        )
        want = _WANTS[state.want]
        head = (state.id, state.choice, state.seed, state.ids, state.n_prompt, want, problem)
        if problem:
            return (*head, settings, bias, b"", b"", (), -1)
        allowed = b"" if p.allowed_token_ids is None else _bits(p.allowed_token_ids, self._vocab)
        return (*head, settings, bias, allowed, state.ends, state.bad, adapter)


def _output(result: tuple[Any, ...]) -> SliceOutput:
    ids, accepted, logprobs, scores, vector, logits, error, prompt = result
    if logprobs is not None:
        logprobs = tuple(TokenLogprob(*entry) for entry in logprobs)
    if prompt is not None:
        prompt = tuple(TokenLogprob(*entry) for entry in prompt)
    return SliceOutput(ids, accepted, logprobs, scores, vector, logits, error, prompt)


def _bits(ids: Iterable[int], vocab: int) -> bytes:
    """uint32[ceil(vocab / 32)] with the bits of ``ids`` set."""
    bits = 0
    for token in ids:
        bits |= 1 << token
    return bits.to_bytes(4 * ((vocab + 31) // 32), "little")


@contextmanager
def _as_model_error() -> Iterator[None]:
    """The decoder's complaints about tensors as ModelErrors; out of memory as CapacityError."""
    try:
        yield
    except ValueError as error:
        raise ModelError(str(error)) from None
    except MemoryError:
        raise CapacityError(
            "no memory for the weights; use a smaller model or a smaller weight type"
        ) from None


def _check_group(group: KvGroup) -> None:
    for dtype in (group.k_dtype, group.v_dtype):
        if dtype not in _KV_TYPES:
            raise ConfigError(f"KV type {dtype!r}: use one of {', '.join(_KV_TYPES)}")


def _make_decoder(spec: DecoderSpec, config: RunnerConfig) -> _native.Decoder:
    try:
        return _native.Decoder(
            vocab=spec.vocab,
            hidden=spec.hidden,
            max_step_tokens=config.max_step_tokens,
            max_seqs=config.max_seqs,
            max_model_len=config.max_model_len,
            threads=config.threads,
            precise=config.precise,
            huge_pages=flags.read("SPOLA_HUGE_PAGES"),
            weight_limit=_weight_limit(spec, config),
            isa=requested_isa(),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except MemoryError:
        raise CapacityError("no address space for the weights") from None


def _weight_limit(spec: DecoderSpec, config: RunnerConfig) -> int:
    """More bytes than packed weights and rope tables can take: addresses are reserved for them at once."""
    total = 1 << 20
    for info in manifest(spec):
        *stack, rows, columns = (1, *info.shape)[-3:] if len(info.shape) > 1 else (1, 1, *info.shape)
        total += math.prod(stack) * ((rows + _TILE_ROWS) * columns * 4 + 64)
    for layer in spec.layers:
        total += config.max_model_len * getattr(layer.attention.positions, "dim", 0) * 4 + 128
        total += 16 * spec.hidden + 256
    return total


def _add_group(decoder: _native.Decoder, group: KvGroup, blocks: int) -> None:
    try:
        decoder.add_kv_group(
            layers=len(group.layers),
            heads=group.heads,
            k_dim=group.k_dim,
            v_dim=group.v_dim,
            window=group.window,
            k_type=_KV_TYPES[group.k_dtype],
            v_type=_KV_TYPES[group.v_dtype],
            latent=group.kind == "latent",
            blocks=blocks,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except MemoryError:
        size = blocks * group.bytes_per_block
        raise CapacityError(f"no memory for {blocks} KV blocks ({size} bytes); lower --kv-memory") from None
