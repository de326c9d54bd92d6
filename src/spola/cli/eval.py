"""``spola eval``: perplexity of a model on a text, and its agreement with another."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from spola.cli.options import engine_options, read_options
from spola.cli.output import emit_json, json_option, note, read_stdin
from spola.core.errors import ConfigError, ModelError, RequestError
from spola.evaluate.agreement import Agreement, require_numpy
from spola.evaluate.perplexity import Perplexity
from spola.evaluate.windows import Evaluator, windows
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.loaded import Loaded

__all__ = ["command"]

REFERENCE = "reference"


@click.command("eval", epilog="Example: spola eval smollm2 --text book.txt --against reference --chunks 4")
@click.argument("model")
@click.option(
    "--text",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The text to predict; default: stdin.",
)
@click.option("--ctx", default=512, show_default=True, type=click.IntRange(4), help="Tokens of a window.")
@click.option("--chunks", type=click.IntRange(1), help="Use this many windows at most.")
@click.option(
    "--against",
    metavar="MODEL|reference",
    help="Also compare with this model, or with the reference backend in f32 (needs spola[eval]).",
)
@engine_options
@json_option
def command(
    model: str,
    path: Path | None,
    ctx: int,
    chunks: int | None,
    against: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Perplexity of MODEL by llama-perplexity's protocol: the second half of each window is scored.

    With --against also the mean KL divergence (nats) from the other model's distribution, and how often both
    have the same likeliest token.
    """
    if given["max_model_len"] is not None:
        raise click.UsageError("the length is --ctx here, not --max-model-len")
    if given["speculate"] != "off":
        raise click.UsageError("nothing is generated here: --speculate has nothing to draft")
    if given["chat_template"] is not None:
        raise click.UsageError("the text is taken as it is: --chat-template has no place here")
    given["max_model_len"] = ctx
    options = read_options(given, max_seqs=1)
    if against is not None:
        require_numpy()
    text = _text(path)
    loaded = load_engine(model, options)
    evaluator = Evaluator(loaded.engine)
    try:
        cut = windows(loaded.tokenizer, text, ctx, chunks)
        note(f"{len(cut)} windows of {ctx} tokens")
        if against is None:
            result = _alone(evaluator, cut)
        else:
            result = _compared(evaluator, loaded, _other(model, against, options), cut)
    finally:
        evaluator.close()
    if as_json:
        emit_json(result)
        return
    spread = "" if result["stderr"] is None else f" +/- {result['stderr']:.4f}"
    click.echo(f"perplexity {result['ppl']:.4f}{spread} over {result['tokens']} tokens")
    if against is not None:
        spread = "" if result["kl_stderr"] is None else f" +/- {result['kl_stderr']:.6f}"
        click.echo(
            f"against {against}: mean KL {result['mean_kl']:.6f}{spread}, same top-1 {result['top1']:.2%}"
        )


def _text(path: Path | None) -> str:
    if path is None:
        if sys.stdin.isatty():
            raise click.UsageError("give --text FILE, or a text on stdin")
        return read_stdin("text")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--text {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"--text {path}: is not valid UTF-8 at byte {error.start}", param="text") from None


def _other(model: str, against: str, options: Options) -> Loaded:
    if against == REFERENCE:
        return load_engine(model, dataclasses.replace(options, backend=REFERENCE))
    return load_engine(against, options)


def _alone(evaluator: Evaluator, cut: list[list[int]]) -> dict[str, Any]:
    found = Perplexity()
    for index, window in enumerate(cut, start=1):
        found.add(evaluator.scores(window))
        _progress(index, len(cut), found)
    return _result(found, None)


def _compared(evaluator: Evaluator, loaded: Loaded, other: Loaded, cut: list[list[int]]) -> dict[str, Any]:
    base = Evaluator(other.engine)
    try:
        if other.spec.vocab != loaded.spec.vocab:
            raise ModelError(
                f"the models have {loaded.spec.vocab} and {other.spec.vocab} ids; they must be the same"
            )
        found, agreement = Perplexity(), Agreement(loaded.spec.vocab)
        for index, window in enumerate(cut, start=1):
            targets = window[len(window) // 2 + 1 :]
            found.add(agreement.add(evaluator.logits(window), base.logits(window), targets))
            _progress(index, len(cut), found)
    finally:
        base.close()
    return _result(found, agreement)


def _result(found: Perplexity, agreement: Agreement | None) -> dict[str, Any]:
    return {
        "ppl": found.value,
        "stderr": found.stderr,
        "mean_kl": None if agreement is None else agreement.mean_kl,
        "kl_stderr": None if agreement is None else agreement.kl_stderr,
        "top1": None if agreement is None else agreement.top1,
        "tokens": found.count,
    }


def _progress(index: int, count: int, found: Perplexity) -> None:
    if sys.stderr.isatty():
        end = "\n" if index == count else "\r"
        print(f"{index}/{count}: {found.value:.4f}", end=end, file=sys.stderr, flush=True)
