"""``spola tokenize``: the ids of a text, by the tokenizer of a model or of a vocabulary-only file."""

from __future__ import annotations

import click

from spola.cli.output import emit_json, json_option, read_stdin
from spola.load.model import open_tokenizer
from spola.load.resolve import resolve_model

__all__ = ["command"]


@click.command("tokenize", epilog='Example: spola tokenize "Hello, world" --json')
@click.argument("text", required=False)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="As for run; also a GGUF file that holds a vocabulary only. Default: smollm2.",
)
@click.option("--no-bos", is_flag=True, help="Leave out the begin-of-text token the model asks for.")
@click.option("--special", is_flag=True, help="Read the texts of special tokens as those tokens.")
@json_option
def command(text: str | None, model: str | None, no_bos: bool, special: bool, as_json: bool) -> None:
    """Show the token ids of TEXT, or of stdin taken as it is."""
    tokenizer = open_tokenizer(resolve_model(model).path)
    if text is None:
        text = read_stdin("TEXT")
    ids = tokenizer.encode(text, add_bos=False if no_bos else None, parse_special=special)
    tokens = [tokenizer.token_text(token) for token in ids]
    words = len(text.split())
    if as_json:
        ratio = len(ids) / words if words else None
        emit_json({"ids": ids, "tokens": tokens, "n": len(ids), "words": words, "tokens_per_word": ratio})
        return
    for token, shown in zip(ids, tokens, strict=True):
        click.echo(f"{token:>7}  {shown!r}")
    per_word = f", {len(ids) / words:.2f} per word" if words else ""
    click.echo(f"{len(ids)} tokens, {words} words{per_word}")
