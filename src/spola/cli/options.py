"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click

from spola.cli.output import note
from spola.core.errors import SpolaError
from spola.core.text_file import read_text
from spola.engine.drafter import DraftRule
from spola.engine.limits import Batching, Reservation
from spola.runtime.config import DRAFT, SPECULATE, EngineConfig, Options, parse_memory
from spola.runtime.machine import describe_bytes
from spola.runtime.memory import INTERPRETER, MemoryPlan, peak_resident
from spola.runtime.service import Service
from spola.spec.weight_types import WEIGHT_TYPES

__all__ = [
    "as_usage",
    "batching_options",
    "describe",
    "engine_options",
    "in_short",
    "itl_target_option",
    "kv_dtype_option",
    "lora_option",
    "max_seqs_option",
    "measured_line",
    "mix_options",
    "model_option",
    "plan_lines",
    "precise_option",
    "read_options",
    "sampling_options",
    "threads_option",
    "trace_failed",
    "trace_option",
    "verbose_option",
]

_MAX_TEMPLATE = 1 << 20  # bytes; what may be compiled is bounded where it is

_Decorator = Callable[[Any], Any]

threads_option: _Decorator = click.option(
    "--threads", type=click.IntRange(1), help="Threads; default: one per core, within the quota."
)

max_seqs_option: _Decorator = click.option(
    "--max-seqs", default=32, show_default=True, type=click.IntRange(1), help="Requests at a time."
)

verbose_option: _Decorator = click.option(
    "-v", "--verbose", is_flag=True, help="Say what was chosen and why."
)

precise_option: _Decorator = click.option(
    "--precise", is_flag=True, help="16-bit instead of 8-bit activations: slower, closer to f32."
)

kv_dtype_option: _Decorator = click.option(
    "--kv-dtype",
    default="f16",
    show_default=True,
    metavar="K[,V]",
    help="Types of cached K and V: f16, f32 or int8, one for both or one each.",
)

itl_target_option: _Decorator = click.option(
    "--itl-target",
    default=100.0,
    show_default=True,
    metavar="MS",
    type=click.FloatRange(0, min_open=True),
    help="Keep the time between two tokens of an answer under this while prompts are read.",
)

_MIX: tuple[_Decorator, ...] = (
    click.option(
        "--dataset",
        default="random",
        show_default=True,
        metavar="random|sharegpt-like|prefix|FILE",
        help="The mix of requests; a FILE has JSON lines with prompt or messages, or ShareGPT's array.",
    ),
    click.option(
        "--spread",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 1, max_open=True),
        help="Lengths vary evenly by this fraction.",
    ),
    click.option(
        "--shared",
        default=256,
        show_default=True,
        type=click.IntRange(1),
        help="Tokens of a shared prefix.",
    ),
    click.option(
        "--groups", default=4, show_default=True, type=click.IntRange(1), help="Different shared prefixes."
    ),
    click.option("--seed", default=0, show_default=True, help="Of lengths, arrivals and words."),
)

_ENGINE: tuple[_Decorator, ...] = (
    click.option("--backend", default="native", show_default=True, help="Which backend computes."),
    threads_option,
    precise_option,
    click.option(
        "--weights",
        type=click.Choice(tuple(WEIGHT_TYPES)),
        help="Quantize F32, F16 and BF16 weights to this type while they are loaded.",
    ),
    kv_dtype_option,
    click.option(
        "--kv-memory",
        metavar="BYTES",
        help="Memory of the KV cache, as 512M, 2GiB or 40% of what this process may use; default: what fits.",
    ),
    click.option(
        "--max-model-len", type=click.IntRange(1), help="Tokens of prompt and answer together, at most."
    ),
    click.option(
        "--speculate",
        metavar="|".join((*SPECULATE, f"{DRAFT}MODEL")),
        default="off",
        show_default=True,
        help="Where drafts of the next tokens come from; the output stays the same.",
    ),
    click.option(
        "--draft-rule",
        type=click.Choice(get_args(DraftRule)),
        default="match",
        show_default=True,
        help="How drafts of a model are verified. rejection accepts more when sampling: as likely a text, "
        "but not the same one as without drafts.",
    ),
    click.option(
        "--no-prefix-cache", is_flag=True, help="Compute every prompt anew, even one that was seen before."
    ),
    click.option(
        "--chat-template",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Jinja file to use instead of the model's own chat template.",
    ),
)

_SAMPLING: tuple[_Decorator, ...] = (
    click.option("-n", "--max-tokens", type=click.IntRange(1), help="Tokens to generate, at most."),
    click.option("--temperature", type=float, help="0 is greedy; default: as the model asks, else 0."),
    click.option(
        "--top-p", type=float, help="Sample from the likeliest tokens that sum to this probability."
    ),
    click.option("--top-k", type=int, help="Sample from this many likeliest tokens."),
    click.option(
        "--min-p", type=float, help="Drop tokens below this fraction of the likeliest one's probability."
    ),
    click.option("--seed", type=int, help="Same seed, same answer."),
    click.option("--stop", multiple=True, metavar="STR", help="End the answer before this text. Repeatable."),
)


model_option: _Decorator = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="GGUF file, Hugging Face folder, a name from `spola models`, org/name[:TYPE] or ollama:NAME; "
    "default: smollm2.",
)

trace_option: _Decorator = click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a timeline of steps and requests, for ui.perfetto.dev or chrome://tracing.",
)


_BATCHING: tuple[_Decorator, ...] = (
    click.option(
        "--batching",
        type=click.Choice(get_args(Batching)),
        default="continuous",
        show_default=True,
        help="When requests may begin: at every step, or in batches that end together, to compare with.",
    ),
    click.option(
        "--batch-window",
        metavar="MS",
        type=click.FloatRange(0),
        help="How long a dynamic batch waits to become full; default: 200.",
    ),
    click.option(
        "--reservation",
        type=click.Choice(get_args(Reservation)),
        default="paged",
        show_default=True,
        help="KV blocks as they are needed, or for --max-model-len at once, without paging, to compare with.",
    ),
)


lora_option: _Decorator = click.option(
    "--lora",
    multiple=True,
    metavar="NAME=PATH",
    help="Load a LoRA adapter (a PEFT folder with safetensors) under a name. Repeatable.",
)


def batching_options(command: Any) -> Any:
    """Add the batching mode to a command that serves many; ``read_options`` takes it back out."""
    for option in reversed(_BATCHING):
        command = option(command)
    return command


def engine_options(command: Any) -> Any:
    """Add the engine options to a command; ``read_options`` takes them back out of its arguments."""
    for option in reversed(_ENGINE):
        command = option(command)
    return command


def mix_options(command: Any) -> Any:
    """Add what describes a mix of requests, for ``workload.mix``."""
    for option in reversed(_MIX):
        command = option(command)
    return command


def sampling_options(command: Any) -> Any:
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def read_options(given: dict[str, Any], **fixed: Any) -> Options:
    """Take the engine options out of ``given``; ``fixed`` sets fields that a command decides itself."""
    memory = given.pop("kv_memory")
    template: Path | None = given.pop("chat_template")
    window: float | None = given.pop("batch_window", None)
    text = None if template is None else read_text(template, "--chat-template", _MAX_TEMPLATE)
    adapters = tuple(_named(value) for value in given.pop("lora", ()))
    with as_usage():
        return Options(
            backend=given.pop("backend"),
            threads=given.pop("threads"),
            precise=given.pop("precise"),
            weights=given.pop("weights"),
            lora=adapters,
            kv_dtype=given.pop("kv_dtype"),
            kv_memory=None if memory is None else parse_memory(memory, "--kv-memory"),
            max_model_len=given.pop("max_model_len"),
            speculate=given.pop("speculate"),
            draft_rule=given.pop("draft_rule"),
            prefix_cache=not given.pop("no_prefix_cache"),
            batching=given.pop("batching", "continuous"),
            reservation=given.pop("reservation", "paged"),
            batch_window_s=None if window is None else window / 1000,
            chat_template=text,
            **fixed,
        )


def _named(value: str) -> tuple[str, str]:
    name, equals, path = value.partition("=")
    if not name or not equals or not path:
        raise click.UsageError(f"--lora {value[:80]!r}: write NAME=PATH")
    return name, path


@contextmanager
def as_usage() -> Iterator[None]:
    """A value that no model could obey is wrong usage, like one that click itself refuses."""
    try:
        yield
    except SpolaError as error:
        raise click.UsageError(str(error)) from None


def describe(config: EngineConfig, load_s: float) -> None:
    """What was chosen, for ``-v``: a few lines on stderr."""
    note(f"model      {config.model} ({config.architecture}), {config.path}")
    note(f"backend    {config.backend} on {config.device}, {config.threads} threads: {config.threads_reason}")
    packed, stored = describe_bytes(config.packed_bytes), describe_bytes(config.weights_bytes)
    note(f"weights    {packed}, {stored} in the file, loaded in {load_s:.2f} s")
    kinds = "/".join(dict.fromkeys(config.kv_dtypes))
    note(
        f"KV cache   {describe_bytes(config.kv_bytes)} of {kinds}, {sum(config.kv_blocks)} blocks, "
        f"{describe_bytes(config.kv_bytes_per_token)} per token"
    )
    note(
        f"context    {config.max_model_len} tokens: {config.max_model_len_reason} "
        f"(trained for {config.trained_context})"
    )
    if config.draft is not None:
        draft = config.draft
        note(
            f"drafts     {draft.model}, {describe_bytes(draft.packed_bytes)}, KV cache "
            f"{describe_bytes(draft.kv_bytes)}, verified by {config.draft_rule}"
        )
    note(f"memory     {describe_bytes(config.usable_bytes)} may be used")


def in_short(config: EngineConfig, load_s: float) -> str:
    """One line for a server's log: what takes the memory, and how long requests may be."""
    tokens = config.kv_bytes // config.kv_bytes_per_token
    return (
        f"{config.model} on {config.backend} with {config.threads} threads, loaded in {load_s:.1f} s: "
        f"weights {describe_bytes(config.packed_bytes)}, KV cache up to {describe_bytes(config.kv_bytes)} "
        f"({tokens} tokens), requests up to {config.max_model_len} tokens"
    )


def plan_lines(config: EngineConfig) -> list[str]:
    """What the process will take in memory, part by part."""
    memory = config.memory
    if memory is None:
        return []
    shown = describe_bytes
    loading = f"; {shown(memory.peak)} while it is loaded" if memory.peak > memory.total else ""
    return [
        f"plan: {shown(memory.total)} in all = weights {shown(memory.weights)} + KV cache {shown(memory.kv)} "
        f"({config.max_seqs} requests at a time, {config.max_model_len} tokens at most, "
        f"{config.kv_bytes // config.kv_bytes_per_token} in all) + workspace {shown(memory.workspace)} "
        f"{_of_draft(config, memory)}+ {_of_process(memory)} + tokenizer {shown(memory.tokenizer)}{loading}; "
        f"{shown(config.usable_bytes)} may be used"
    ]


def _of_draft(config: EngineConfig, memory: MemoryPlan) -> str:
    if config.draft is None:
        return ""
    weights, kv = describe_bytes(memory.draft), describe_bytes(memory.draft_kv)
    return f"+ draft model {config.draft.model} {weights} and its KV cache {kv} "


def _of_process(memory: MemoryPlan) -> str:
    what = "interpreter" if memory.interpreter <= 1.1 * INTERPRETER else "what the process holds now"
    return f"{what} {describe_bytes(memory.interpreter)}"


def measured_line(config: EngineConfig, kv_blocks: int, when: str) -> str | None:
    """How the memory that was planned compares with what was taken, with ``kv_blocks`` in use or cached."""
    memory, peak = config.memory, peak_resident()
    if memory is None or peak is None:
        return None
    # A draft model's cache fills with the served one's.
    used = memory.without_kv()
    used += kv_blocks * (config.kv_bytes + memory.draft_kv) // max(1, sum(config.kv_blocks))
    used = max(used, memory.host + memory.loading)
    off = peak - used
    return (
        f"memory {when}: planned {describe_bytes(used)}, measured {describe_bytes(peak)} at its peak, "
        f"{describe_bytes(abs(off))} {'more' if off > 0 else 'less'}"
    )


def trace_failed(service: Service) -> None:
    """Say so when the trace asked for is not whole."""
    if service.timeline is not None and service.timeline.failure is not None:
        note(f"spola: warning: {service.timeline.failure}")
