"""The commands that make the figures of docs/understanding, all of them but shorter, on SmolLM2."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.server.serve import bind
from support.tools import ROOT, load_tool

FIGURES = load_tool("figures")
MADE = {name: commands for one in FIGURES.chapters("en") for name, commands in one.figures.items()}


# What a figure needs to be worth looking at, a test does not.
SHORTER = {
    r" -n \d+": " -n 8",
    r" -b [\d,]+": " -b 1,2",
    r"--requests \d+": "--requests 4",
    r"--shared \d+": "--shared 64",
}


@pytest.fixture
def port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("name", MADE)
def test_the_commands_of_a_figure_run_and_draw_it(name: str, port: int) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    commands = []
    for command in MADE[name]:
        for long, short in SHORTER.items():
            command = re.sub(long, short, command)
        commands.append(command.replace("8123", str(port)))
    docs = FIGURES.run(commands, busy=True)
    assert len(docs) == sum(not command.endswith("&") for command in commands)
    assert "<svg" in FIGURES.DRAW[name](docs).render()
