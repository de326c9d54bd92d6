"""``spola quiz``: questions on the terminal, answered on stdin, graded at once."""

from __future__ import annotations

import secrets
import sys

import click
import msgspec

from spola.cli.glossary import lang_option
from spola.cli.output import emit_json, json_option
from spola.glossary import Lang
from spola.planner.quiz import Question, grade, questions

__all__ = ["command"]

_SAY = {
    "en": {
        "right": "right",
        "wrong": "no: {answer}",
        "score": "{right} of {asked} right",
        "ask": "your answer",
    },
    "it": {
        "right": "giusto",
        "wrong": "no: {answer}",
        "score": "{right} giuste su {asked}",
        "ask": "la tua risposta",
    },
}


@click.command("quiz", epilog="Examples: spola quiz; spola quiz --lang it -n 5")
@click.option(
    "-n", "--number", default=10, show_default=True, type=click.IntRange(1, 1000), help="Questions."
)
@click.option("--seed", type=int, help="Same seed, same questions.")
@lang_option
@json_option
def command(number: int, seed: int | None, lang: Lang, as_json: bool) -> None:
    """Ask about LLM inference: concepts, and sums such as "13B in INT8, how many GB?".

    A number counts as right within 3 %. --json prints questions, answers and workings, and asks nothing.
    """
    asked = questions(number, lang, secrets.randbits(32) if seed is None else seed)
    if as_json:
        emit_json({"questions": [msgspec.to_builtins(one) for one in asked]})
        return
    say = _SAY[lang]
    right = done = 0
    for i, question in enumerate(asked, 1):
        _put(i, question)
        given = _answer(question, say["ask"])
        if given is None:
            break
        done += 1
        if grade(question, given):
            right += 1
            click.echo(f"  {say['right']}. {question.worked}\n")
        else:
            click.echo(f"  {say['wrong'].format(answer=_shown(question))}. {question.worked}\n")
    click.echo(say["score"].format(right=right, asked=done))


def _put(i: int, question: Question) -> None:
    click.echo(f"{i}. {question.text}")
    for place, option in enumerate(question.options, 1):
        click.echo(f"   {place}) {option}")


def _answer(question: Question, prompt: str) -> str | None:
    """One line of stdin; None at its end."""
    unit = f" ({question.unit})" if question.unit else ""
    click.echo(f"{prompt}{unit}: ", nl=False)
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        click.echo(line.rstrip("\n"))
    return line if line else None


def _shown(question: Question) -> str:
    if isinstance(question.answer, str):
        return question.answer
    return f"{question.answer:.4g} {question.unit}".strip()
