"""The draft model of an engine: opened beside the served one, held against it, and given a runner of its own.

A draft is only of use as the same token, so the two vocabularies are compared text by text, not by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from spola.core.errors import ConfigError, ModelError
from spola.core.runner import DraftHolder, Runner, RunnerConfig
from spola.engine.drafter import Drafter
from spola.engine.kv import KvSpace
from spola.engine.speculate import StepTimes
from spola.load.model import Model, open_model
from spola.load.resolve import resolve_model
from spola.runtime.config import DRAFT, EngineConfig, Options
from spola.runtime.guards import real_tokens
from spola.text.tokenizer import Tokenizer
from spola.text.vocab import NORMAL

__all__ = ["check_same_tokens", "load_drafter", "open_draft"]


def open_draft(options: Options) -> AbstractContextManager[Model | None]:
    """The model that ``options.speculate`` names, to be closed; None where it names none."""
    if not options.speculate.startswith(DRAFT):
        return nullcontext()
    return open_model(resolve_model(options.speculate.removeprefix(DRAFT)))


def check_same_tokens(model: Model, draft: Model) -> None:
    """Raise ModelError, naming the first token that differs, unless both mean the same by every id.

    One may have more entries than the other, as long as those are no ordinary tokens.
    """
    ours, theirs = model.tokenizer, draft.tokenizer
    both = min(ours.vocab_size, theirs.vocab_size)
    which = f"speculate: draft model {draft.name} ({draft.path}) has another tokenizer than {model.name}"
    for token in range(both):
        one, other = ours.vocab.tokens[token], theirs.vocab.tokens[token]
        if one != other and not (ours.vocab.is_padding(token) and theirs.vocab.is_padding(token)):
            raise ModelError(f"{which}: token {token} is {other!r:.60}, not {one!r:.60}")
    for tokenizer, name in ((ours, model.name), (theirs, draft.name)):
        more = [t for t in range(both, tokenizer.vocab_size) if _ordinary(tokenizer, t)]
        if more:
            text = tokenizer.vocab.tokens[more[0]]
            raise ModelError(f"{which}: only {name} has token {more[0]}, {text!r:.60}")


def _ordinary(tokenizer: Tokenizer, token: int) -> bool:
    return tokenizer.vocab.types[token] == NORMAL and not tokenizer.vocab.is_padding(token)


def load_drafter(
    runner: Runner, target: Runner, model: Model, draft: Model, config: EngineConfig, times: StepTimes
) -> Drafter:
    """Load ``draft`` into ``runner``; ``times`` are those of the served model's steps.

    Raises as ``Runner.load``, and ConfigError where the backend cannot do what ``config.draft_rule`` asks.
    """
    assert config.draft is not None
    caps = runner.capabilities
    if caps.static_shapes:
        raise ConfigError(
            f"speculate: backend {config.backend} has fixed shapes and cannot run a draft model"
        )
    if config.draft_rule == "rejection" and not (
        isinstance(runner, DraftHolder) and isinstance(target, DraftHolder)
    ):
        raise ConfigError(f"draft_rule rejection: backend {config.backend} holds no distributions; use match")
    sizes = config.draft
    with draft.naming():
        runner.load(
            draft.spec,
            draft.tensors(),
            RunnerConfig(
                kv_groups=sizes.kv_groups,
                kv_blocks=sizes.kv_blocks,
                max_step_tokens=config.max_step_tokens,
                max_seqs=config.max_seqs,
                max_model_len=sizes.max_model_len,
                threads=config.threads,
                precise=config.precise,
            ),
        )
    kv = KvSpace(
        sizes.kv_groups, sizes.kv_blocks, block_size=caps.block_size, max_slice=config.max_step_tokens
    )
    return Drafter(
        runner,
        kv,
        times,
        ratio=sizes.packed_bytes / config.packed_bytes,
        max_rows=config.max_step_tokens,
        max_len=sizes.max_model_len,
        identity={"weights": draft.fingerprint, "kv": ",".join(config.kv_dtypes)},
        rule=config.draft_rule,
        allowed=_allowed((model, draft)),
        prefix_cache=config.prefix_cache,
    )


def _allowed(models: Sequence[Model]) -> bytes | None:
    """Bits, of the draft model's rows, of the ids that are tokens of both; None if all its rows are."""
    vocab = models[-1].spec.vocab
    bits = (1 << vocab) - 1
    for model in models:
        real = real_tokens(model.tokenizer, model.spec.vocab)
        bits &= (1 << model.spec.vocab) - 1 if real is None else int.from_bytes(real, "little")
    return None if bits == (1 << vocab) - 1 else bits.to_bytes(4 * ((vocab + 31) // 32), "little")
