"""``spola glossary``: a word of LLM inference explained, in English or Italian."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from typing import Any

import click
import msgspec

from spola.cli.output import emit_json, json_option
from spola.core.errors import RequestError
from spola.glossary import Glossary, Lang, Term

__all__ = ["command", "lang_option"]

_LABELS = {
    "en": {"say": "say", "where": "in spola", "aka": "also", "other": "it"},
    "it": {"say": "in inglese", "where": "in spola", "aka": "anche", "other": "en"},
}

lang_option: Callable[[Any], Any] = click.option(
    "--lang", type=click.Choice(["en", "it"]), default="en", show_default=True, help="Language of the texts."
)


@click.command("glossary", epilog="Examples: spola glossary prefill; spola glossary decodifica --lang it")
@click.argument("term", required=False)
@lang_option
@json_option
def command(term: str | None, lang: Lang, as_json: bool) -> None:
    """Explain TERM, found by its English or Italian name; without TERM, list all terms.

    With each definition comes an English sentence to use the word in, as in an interview, and where spola
    shows the thing itself.
    """
    glossary = Glossary()
    found = list(glossary.terms) if term is None else [_find(glossary, term)]
    if as_json:
        emit_json({"terms": [msgspec.to_builtins(one) for one in found]})
    elif term is None:
        _list(found, lang)
    else:
        _show(found[0], lang)


def _find(glossary: Glossary, word: str) -> Term:
    term = glossary.find(word)
    if term is None:
        near = ", ".join(repr(one.en) for one in glossary.near(word))
        hint = f"did you mean {near}?" if near else "`spola glossary` lists all terms"
        raise RequestError(f"{word!r} is not in the glossary; {hint}", param="TERM")
    return term


def _list(terms: list[Term], lang: Lang) -> None:
    other: Lang = "en" if lang == "it" else "it"
    width = max(len(term.name(lang)) for term in terms)
    for term in terms:
        click.echo(f"{term.name(lang):<{width}}  {term.name(other)}")


def _show(term: Term, lang: Lang) -> None:
    labels = _LABELS[lang]
    other: Lang = "en" if lang == "it" else "it"
    click.echo(f"{term.name(lang)} ({labels['other']}: {term.name(other)})")
    click.echo(_wrapped(term.definition(lang)))
    rows = [("aka", ", ".join(term.aka)), ("say", f'"{term.sentence}"'), ("where", term.where)]
    for key, text in rows:
        if text:
            click.echo(_wrapped(text, labels[key]))


def _wrapped(text: str, label: str = "") -> str:
    width = min(100, shutil.get_terminal_size().columns)
    first = f"  {label + ':':<12}" if label else "  "
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * len(first))
