"""What a model needs of memory before it is loaded, as its backend counts it. Loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spola.core.runner import KvGroup, Runner, RunnerConfig
from spola.load.model import Model
from spola.runtime.fit import WORKSPACE
from spola.runtime.memory import INTERPRETER, MemoryPlan, resident
from spola.text.footprint import tokenizer_bytes

__all__ = [
    "DraftNeeds",
    "Shape",
    "loading_of",
    "memory_plan",
    "packed_bytes",
    "release_memory",
    "workspace_of",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the workspace of a backend depends on, besides the model."""

    step_tokens: int
    max_seqs: int
    threads: int
    precise: bool
    max_lora_rank: int = 0

    def config(
        self, groups: tuple[KvGroup, ...], blocks: tuple[int, ...], max_model_len: int
    ) -> RunnerConfig:
        return RunnerConfig(
            kv_groups=groups,
            kv_blocks=blocks,
            max_step_tokens=self.step_tokens,
            max_seqs=self.max_seqs,
            max_model_len=max_model_len,
            threads=self.threads,
            precise=self.precise,
            max_lora_rank=self.max_lora_rank,
        )


@dataclass(frozen=True, slots=True)
class DraftNeeds:
    """A draft model with the KV cache that it gets."""

    model: Model
    groups: tuple[KvGroup, ...]
    blocks: tuple[int, ...]
    max_model_len: int


def workspace_of(models: Sequence[tuple[Model, tuple[KvGroup, ...]]], runner: Runner, shape: Shape) -> int:
    """Bytes that steps compute in, as the backend counts them; a guess where it does not."""
    footprint = getattr(runner, "footprint", None)
    if footprint is None:
        return WORKSPACE
    return sum(
        footprint(model.spec, model.dtypes, shape.config(groups, (1,) * len(groups), 1))["workspace"]
        for model, groups in models
    )


def packed_bytes(model: Model, runner: Runner, precise: bool) -> int:
    """What the weights take in the backend's own layout, where it says so; else as in the file."""
    weight_bytes = getattr(runner, "weight_bytes", None)
    if weight_bytes is None:
        return model.weights_bytes
    return int(weight_bytes(model.spec, model.dtypes, precise=precise))


def loading_of(model: Model, runner: Runner, precise: bool) -> int:
    """The most bytes of weights at a time while ``model`` is loaded; 0 where the backend does not tell."""
    count = getattr(runner, "loading_bytes", None)
    return 0 if count is None else int(count(model.spec, model.dtypes, precise=precise))


def release_memory(runner: Runner) -> None:
    """Give what was freed back to the system, where the backend can: what tokenizers are built from."""
    trim = getattr(runner, "trim_heap", None)
    if trim is not None:
        trim()


def memory_plan(
    model: Model,
    groups: tuple[KvGroup, ...],
    runner: Runner,
    shape: Shape,
    blocks: tuple[int, ...],
    max_model_len: int,
    adapters: int = 0,
    draft: DraftNeeds | None = None,
) -> MemoryPlan | None:
    """What the process will take for ``model``, ``adapters`` bytes of adapters and a ``draft`` model, where
    the backend tells.
    """
    footprint = getattr(runner, "footprint", None)
    if footprint is None:
        return None
    taken = footprint(model.spec, model.dtypes, shape.config(groups, blocks, max_model_len))
    tokenizer = tokenizer_bytes(model.spec.vocab)
    now = resident() or 0
    helper = {"weights": 0, "workspace": 0, "kv": 0}
    if draft is not None:
        config = shape.config(draft.groups, draft.blocks, draft.max_model_len)
        helper = footprint(draft.model.spec, draft.model.dtypes, config)
        tokenizer += tokenizer_bytes(draft.model.spec.vocab)
    return MemoryPlan(
        weights=taken["weights"] + adapters,
        kv=taken["kv"],
        workspace=taken["workspace"],
        interpreter=max(INTERPRETER, now - tokenizer),
        tokenizer=tokenizer,
        draft=helper["weights"] + helper["workspace"],
        draft_kv=helper["kv"],
        loading=loading_of(model, runner, shape.precise),
    )
