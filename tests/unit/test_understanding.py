"""The chapters: both languages in step, figures made by the commands shown, and only commands that exist."""

from __future__ import annotations

import shlex

import click
import pytest

from spola.cli import main as cli
from support.tools import load_tool

FIGURES = load_tool("figures")
COMMANDS = sorted({line for one in FIGURES.chapters("en") for block in one.blocks for line in block})


def test_languages_and_figures_are_in_step():
    assert FIGURES.problems() == []


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_a_chapter_parses(line):
    program, *arguments = shlex.split(line.partition(" < ")[0].rstrip("& "))
    assert program == "spola"
    context, command = click.Context(cli), cli
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        context, command = click.Context(found, info_name=name), found
    command.parse_args(click.Context(command), arguments)


def test_a_language_that_falls_behind_is_seen(tmp_path, monkeypatch):
    for lang in ("en", "it"):
        (tmp_path / lang).mkdir()
        (tmp_path / lang / "01-a.md").write_text("# A\n\n```sh\nspola flags\n```\n", encoding="utf-8")
    monkeypatch.setattr(FIGURES, "BOOK", tmp_path)
    monkeypatch.setattr(FIGURES, "DRAW", {})
    assert FIGURES.problems() == []
    (tmp_path / "it" / "01-a.md").write_text("# A\n\n```sh\nspola doctor\n```\n", encoding="utf-8")
    assert FIGURES.problems() == ["01-a: headings, commands or figures differ between en and it"]
    (tmp_path / "en" / "02-b.md").write_text("# B\n", encoding="utf-8")
    assert FIGURES.problems() == ["not in both languages: 02-b"]
