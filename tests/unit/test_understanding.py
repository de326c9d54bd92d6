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


def test_a_vocabulary_that_is_not_installed_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    tool = load_tool("vocabularies")
    package = tmp_path / "some_vocabularies"
    (package / "data").mkdir(parents=True)
    (package / "data" / "tekken_1.json").write_text("old", encoding="utf-8")
    (package / "data" / "tekken_2.json").write_text("new", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    here = ("some_vocabularies", "some", "data/tekken_*.json", "tekken.json")
    monkeypatch.setattr(tool, "_SOURCES", {"a": here, "b": ("not_there_at_all", "other", "*", "x")})
    missing = tool.lay_out(tmp_path / "out")
    assert missing == {"b": "pip install --no-deps other"}
    assert (tmp_path / "out" / "a" / "tekken.json").read_text(encoding="utf-8") == "new"
    assert not (tmp_path / "out" / "b").exists()

    monkeypatch.setattr(FIGURES, "lay_out", lambda target: missing)
    assert FIGURES.run(["spola tokenize -m build/vocabularies/b < docs/understanding/texts/en.txt"]) == [{}]
    assert "pip install --no-deps other" in capsys.readouterr().err
    drawn = FIGURES.DRAW["tokens-per-word"](
        [{"tokens_per_word": 1.5}, {}, {}, {"tokens_per_word": 2.5}, {}, {}]
    )
    assert "2.5" in drawn.render()
