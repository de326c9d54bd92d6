"""What chat templates make of roles, and where they come from (trouble R07, R08), over HTTP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spola.text.chat import ChatTemplate
from support.hf_tokenizer import write_tokenizer
from support.running import TEXT, Running
from support.tiny import Tiny, write_tiny_safetensors

# In the manner of Gemma 3: a system turn is put before the first user turn, others must alternate.
FOLDS = """
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- set before = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' %}
{%- for m in turns %}
{%- set due = 'assistant' if loop.index0 % 2 else 'user' %}
{%- if m.role != due %}{{ raise_exception('turns must alternate') }}{% endif %}
{{- '<' ~ m.role ~ '>' ~ (before if loop.first else '') ~ m.content ~ '</>' }}
{%- endfor %}<assistant>"""
# In the manner of Gemma 2.
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + FOLDS
TURNS = {
    "user user": ["user", "user"],
    "assistant first": ["assistant", "user"],
    "system in the middle": ["user", "system", "user"],
    "tool": ["user", "tool"],
    "unknown": ["x"],
    "none": [],
}


@pytest.fixture(params=[FOLDS, REFUSES], ids=["folds", "refuses"])
def strict(request: pytest.FixtureRequest, running: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server with a template that minds the order of roles."""
    monkeypatch.setattr(running.service, "template", ChatTemplate(request.param))
    return request.param


def chat(*roles: str) -> dict[str, Any]:
    return {
        "messages": [{"role": role, "content": f"{i}"} for i, role in enumerate(roles)],
        "max_tokens": 200,
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TURNS)
def test_roles_that_a_template_refuses_are_a_400(
    running: Running, strict: str, name: str, stream: bool
) -> None:
    status, answer = running.post("/v1/chat/completions", {**chat(*TURNS[name]), "stream": stream})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["param"].startswith("messages")
    if name not in ("unknown", "none"):
        assert "turns must alternate" in answer["error"]["message"]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_turn_is_folded_or_refused_as_the_template_says(
    running: Running, strict: str, role: str
) -> None:
    status, answer = running.post("/v1/chat/completions", chat(role, "user"))
    if strict == REFUSES:
        assert (status, "no system role" in answer["error"]["message"]) == (400, True)
        return
    assert (status, answer["choices"][0]["message"]["content"]) == (200, TEXT)
    wanted = running.service.tokenizer.encode("<user>0\n\n1</><assistant>", add_eos=False)
    assert answer["usage"]["prompt_tokens"] == len(wanted)


WRONG = "a\n{% if x %}"


@pytest.mark.parametrize("given", ["in the folder", "by option"])
def test_a_template_with_a_mistake_is_told_at_the_start(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "tiny"
    model = write_tiny_safetensors(folder, Tiny(tied=True))
    write_tokenizer(folder, model.metadata)
    place = folder / "chat_template.jinja" if given == "in the folder" else tmp_path / "mine.jinja"
    place.write_text(WRONG)
    command = [sys.executable, "-m", "spola", "serve", "--backend", "null", "--port", "0", "-m", str(folder)]
    more = [] if given == "in the folder" else ["--chat-template", str(place)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "line 2" in done.stderr
    assert "template" in done.stderr
