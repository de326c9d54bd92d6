"""Chat templates of published models render as ``transformers`` renders them: tools, system turns,
reasoning switches.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from spola.core.errors import RequestError
from spola.text.chat import ChatTemplate

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "real_templates"
FIXTURE: dict[str, Any] = json.loads((FOLDER / "outputs.json").read_text(encoding="utf-8"))
CLOCK = datetime.datetime(*FIXTURE["clock"])


@pytest.mark.parametrize("chat", sorted(FIXTURE["chats"]))
@pytest.mark.parametrize("name", sorted(FIXTURE["outputs"]))
def test_a_published_template_renders_as_transformers_does(name: str, chat: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, "<s>", "</s>", clock=lambda: CLOCK)
    given, wanted = FIXTURE["chats"][chat], FIXTURE["outputs"][name][chat]

    def render() -> str:
        return template.render(
            given["messages"],
            tools=given.get("tools"),
            add_generation_prompt=given.get("add_generation_prompt", True),
            **given.get("variables", {}),
        )

    if "refused" in wanted:
        with pytest.raises(RequestError):
            render()
    else:
        assert render() == wanted["rendered"]


def test_there_are_enough_of_them() -> None:
    assert len(FIXTURE["outputs"]) >= 25
    assert set(FIXTURE["licences"].values()) == {"Apache-2.0", "MIT"}
