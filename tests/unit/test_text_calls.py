"""Readers of tool calls and reasoning: what each text says, however it is cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spola.text.parts import Part, PlainReader, Reader
from spola.text.reasoning import ReasoningReader
from spola.text.tools import FORMATS, Tool, format_of, parse_tools, taught

TOOLS = parse_tools(
    [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}},
                },
            },
        }
        for name in ("f", "g", "get.weather")
    ]
)


def read(reader: Reader, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """(content, reasoning, [(name, arguments)])."""
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.push(piece)
    parts += reader.finish()
    content, reasoning, calls = "", "", []
    for part in parts:
        if part.kind == "content":
            content += part.text
        elif part.kind == "reasoning":
            reasoning += part.text
        elif part.kind == "call":
            assert part.call == len(calls)
            calls.append((part.name, ""))
        else:
            assert part.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return content, reasoning, calls


def make(family: str) -> Reader:
    return FORMATS[family].reader(TOOLS)


def hermes(*objects: str, join: str = "\n") -> str:
    return join.join(f"<tool_call>\n{o}\n</tool_call>" for o in objects)


F, G = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", "just text\n", "just text\n", []),
    ("hermes", hermes(F), "", [("f", {"a": 1})]),
    ("hermes", hermes(F, G), "", [("f", {"a": 1}), ("g", {})]),
    ("hermes", hermes(F, G, join=""), "", [("f", {"a": 1}), ("g", {})]),
    ("hermes", "Let me see.\n\n" + hermes(F) + "\n", "Let me see.", [("f", {"a": 1})]),
    ("hermes", hermes(F) + "\nand then", "and then", [("f", {"a": 1})]),
    ("hermes", "<tool_call>" + F + "</tool_call>", "", [("f", {"a": 1})]),
    ("hermes", "<tool_call>\n" + F, "", [("f", {"a": 1})]),
    ("hermes", "<tool_call>\n" + F + "\n" + hermes(G), "", [("f", {"a": 1}), ("g", {})]),
    (
        "hermes",
        hermes('{"arguments": {"a": [1, {"b": "}"}]}, "name": "f"}'),
        "",
        [("f", {"a": [1, {"b": "}"}]})],
    ),
    ("hermes", hermes('{"name": "f"}'), "", [("f", {})]),
    ("hermes", hermes('{"name": "f", "arguments": null}'), "", [("f", {})]),
    ("hermes", hermes('{"name": "f", "arguments": "{\\"a\\": 2}"}'), "", [("f", {"a": 2})]),
    (
        "hermes",
        hermes('{"id": 7, "name": "f", "arguments": {"s": "é\\"\\\\</tool_call>"}}'),
        "",
        [("f", {"s": 'é"\\</tool_call>'})],
    ),
    ("hermes", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", []),
    ("hermes", '<tool_call>{"nome": "f"}</tool_call>', '<tool_call>{"nome": "f"}</tool_call>', []),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    ("hermes", "a < b and <tool", "a < b and <tool", []),
    ("hermes", "<tool_call>", "<tool_call>", []),
    ("hermes", '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    (
        "hermes",
        "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\n12\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"a": 12, "s": "12"})],
    ),
    ("hermes", "<tool_call><function=g></function></tool_call> ok", "ok", [("g", {})]),
    ("llama", '{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
    ("llama", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
    (
        "llama",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", {"a": 1}), ("g", {})],
    ),
    ("llama", '{"name": "f", "parameters": {"a": 1}}\n\nDone', "Done", [("f", {"a": 1})]),
    ("llama", '{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
    ("llama", '{"a": 1}', '{"a": 1}', []),
    ("llama", '  {"name": "f"}', '  {"name": "f"}', []),
    ("llama", 'I say {"name": "f", "parameters": {}}', 'I say {"name": "f", "parameters": {}}', []),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", {"a": 1}), ("g", {})],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]',
        "",
        [("f", {"a": 1})],
    ),
    (
        "mistral",
        'Hm. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
        "Hm.",
        [("f", {"a": 1}), ("g", {})],
    ),
    ("mistral", 'f{"a": 1}', 'f{"a": 1}', []),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("mistral", "[TOOL_CALLS]what\nis this", "[TOOL_CALLS]what\nis this", []),
    (
        "pythonic",
        "[f(a=1), get.weather(s='x, y)', l=[1, {'k': None}])]",
        "",
        [("f", {"a": 1}), ("get.weather", {"s": "x, y)", "l": [1, {"k": None}]})],
    ),
    ("pythonic", "[g()]", "", [("g", {})]),
    ("pythonic", '<|python_start|>[f(a=-1, s="é\\n")]<|python_end|>', "", [("f", {"a": -1, "s": "é\n"})]),
    ("pythonic", "[f(a=true, s=null, l=nonsense)]", "", [("f", {"a": True, "s": None, "l": "nonsense"})]),
    ("pythonic", "<function_calls>\nf(a=1)\ng()\n</function_calls>", "", [("f", {"a": 1}), ("g", {})]),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[unknown(a=1)]", "[unknown(a=1)]", []),
    ("pythonic", "See [f(a=1)]", "See [f(a=1)]", []),
    ("pythonic", "[f(a=__import__('os').system('x'))]", "", [("f", {"a": "__import__('os').system('x')"})]),
]


@pytest.mark.parametrize(("family", "text", "content", "calls"), CASES)
def test_what_a_text_says(family: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    whole = read(make(family), [text])
    assert whole[0] == content
    assert [(name, json.loads(arguments)) for name, arguments in whole[2]] == calls
    for at in range(len(text) + 1):
        assert read(make(family), [text[:at], text[at:]]) == whole
    assert read(make(family), list(text)) == whole


def pieces_of(draw: Callable[..., Any], text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<function_calls>",
        "</function_calls>",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ",",
        ";",
        "=",
        ":",
        '"',
        "'",
        "\\",
        "\n",
        " ",
        "f",
        "g",
        "a",
        '"name"',
        '"arguments"',
        '"parameters"',
        '"f"',
        "1",
        "null",
        "text",
        "é",
        F,
        G,
        "f(a=1)",
        "<tool",
        "<|python_start|>",
        "<thi",
        "[CALL_ID]",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(FORMATS)), st.booleans(), st.booleans())
def test_any_cut_gives_the_same(data: st.DataObject, family: str, thinks: bool, opened: bool) -> None:
    text = "".join(data.draw(st.lists(FRAGMENTS, max_size=14)))

    def reader() -> Reader:
        return ReasoningReader(make(family), opened=opened) if thinks else make(family)

    whole = read(reader(), [text])
    assert read(reader(), pieces_of(data.draw, text)) == whole
    assert read(reader(), list(text)) == whole
    names = {tool.name for tool in TOOLS}
    if family in ("llama", "pythonic"):
        assert {name for name, _ in whole[2]} <= names


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.lists(
        st.tuples(
            st.sampled_from(["f", "g"]),
            st.dictionaries(
                st.text(max_size=4),
                st.recursive(
                    st.none() | st.integers() | st.text(max_size=8),
                    lambda i: st.lists(i, max_size=2),
                    max_leaves=4,
                ),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_calls_come_back_as_they_were_written(data: st.DataObject, calls: list[tuple[str, Any]]) -> None:
    def wrote(keys: str, join: str, before: str = "", after: str = "", each: str = "{}") -> str:
        objects = [json.dumps({"name": n, keys: a}, ensure_ascii=False) for n, a in calls]
        return before + join.join(each.replace("{}", o) for o in objects) + after

    texts = {
        "hermes": wrote("arguments", "\n", each="<tool_call>\n{}\n</tool_call>"),
        "llama": wrote("parameters", "; "),
        "mistral": wrote("arguments", ", ", "[TOOL_CALLS][", "]"),
        "mistral-args": "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}" for n, a in calls),
    }
    for family, text in texts.items():
        content, _, found = read(make(family), pieces_of(data.draw, text))
        assert content == ""
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize(
    ("text", "opened", "content", "reasoning"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "yes", "hm"),
        ("hm, well\n</think>\n\nyes", True, "yes", "hm, well"),
        ("no reasoning", False, "no reasoning", ""),
        ("<think>\n\n</think>\n\nyes", False, "yes", ""),
        ("<think>never ends", False, "", "never ends"),
        ("never ends", True, "", "never ends"),
        ("say <think>x</think>", False, "say <think>x</think>", ""),
        (" \n<think>a</think>b", False, "b", "a"),
        ("<thi", False, "<thi", ""),
        ("  ", False, "  ", ""),
        ("a</thin", True, "", "a</thin"),
        ("<think>a</think>b</think>c", False, "b</think>c", "a"),
    ],
)
def test_reasoning(text: str, opened: bool, content: str, reasoning: str) -> None:
    def reader() -> Reader:
        return ReasoningReader(PlainReader(), opened=opened)

    for pieces in ([text], list(text), *([text[:i], text[i:]] for i in range(len(text)))):
        assert read(reader(), pieces)[:2] == (content, reasoning)
    one = reader()
    one.push(text)
    one.finish()
    assert text[: one.reasoned].strip().endswith("</think>") or one.reasoned in (0, len(text))


def test_formats_are_seen_in_templates() -> None:
    for template, family in (
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}[TOOL_CALLS]x[ARGS]", "mistral-args"),
        ('{{ tools }}<|python_tag|> {"name": "parameters"}', "llama"),
        ("{{ tools }}<function_calls>", "pythonic"),
        ("{{ tools }}<tool_call><function=", "hermes"),
    ):
        found = format_of(template)
        assert (found and found.name) == family


def test_a_template_without_tools_is_taught() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "7"},
        {"role": "tool", "content": "8"},
        {"role": "user", "content": "and?"},
    ]
    out = taught(messages, TOOLS)
    assert [message["role"] for message in out] == ["system", "user", "assistant", "user", "user"]
    assert '"name": "get.weather"' in out[0]["content"]
    assert read(make("hermes"), [out[2]["content"]])[2] == [("f", '{"a": 1}')]
    assert out[3]["content"].count("<tool_response>") == 2
    kept = taught([{"role": "system", "content": "Be kind."}, *messages], TOOLS)
    assert kept[0]["content"].startswith("Be kind.\n\nYou may call")
    assert taught(messages, ())[0] == messages[0]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (5, "tools"),
        ([5], "tools[0].type"),
        ([{"type": "web"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "\ud800"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a" * 200}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"),
        (
            [{"type": "function", "function": {"name": "a", "description": 1}}],
            "tools[0].function.description",
        ),
        ([{"type": "function", "function": {"name": "a"}}] * 2, "tools[1].function.name"),
        ([{"type": "function", "function": {"name": f"a{i}"}} for i in range(300)], "tools"),
    ],
)
def test_malformed_tools_are_refused_by_name(tools: Any, param: str) -> None:
    from spola.core.errors import RequestError

    with pytest.raises(RequestError) as caught:
        parse_tools(tools)
    assert caught.value.param == param


def test_a_tool_may_have_no_parameters() -> None:
    (tool,) = parse_tools([{"type": "function", "function": {"name": "a"}}])
    assert isinstance(tool, Tool)
    assert (tool.parameters, tool.strict) == ({}, False)
