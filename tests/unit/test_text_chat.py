"""Chat templates: equal to ``transformers`` (R07-R10, R12), and hostile ones stopped (R11)."""

from __future__ import annotations

import datetime
import json
import pathlib

import pytest

from spola.core.errors import ModelError, RequestError
from spola.load.hf_folder import folder_template
from spola.text.chat import ChatTemplate, find_template, no_template
from spola.text.messages import normalise_messages
from support.vocabularies import metadata, smollm2_file

FIXTURE = json.loads((pathlib.Path(__file__).parents[1] / "fixtures" / "templates.json").read_text("utf-8"))
CLOCK = datetime.datetime(*FIXTURE["clock"])
USER = {"role": "user", "content": "hi"}
SMOLLM2_LIKE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    "record",
    [r for r in FIXTURE["records"] if r["template"] is not None],
    ids=lambda r: f"{r['name']}-{r['chat']}-{r['add_generation_prompt']}",
)
def test_equals_transformers(record):
    template = ChatTemplate(record["template"], "<s>", "</s>", clock=lambda: CLOCK)
    chat = FIXTURE["chats"][record["chat"]]
    text = template.render(
        chat["messages"], tools=chat["tools"], add_generation_prompt=record["add_generation_prompt"]
    )
    assert text == record["rendered"]


def test_embedded_model_equals_transformers():
    template = ChatTemplate(find_template(metadata(smollm2_file())), "<s>", "</s>")
    records = [r for r in FIXTURE["records"] if r["name"] == "smollm2"]
    assert records
    for record in records:
        chat = FIXTURE["chats"][record["chat"]]
        text = template.render(
            chat["messages"], tools=chat["tools"], add_generation_prompt=record["add_generation_prompt"]
        )
        assert text == record["rendered"]


def test_the_template_s_own_words_reach_the_client():
    template = ChatTemplate("{{ raise_exception('Only user and\nassistant roles!') }}")
    with pytest.raises(RequestError, match="Only user and") as caught:
        template.render([USER])
    assert caught.value.status == 400


def test_extra_variables():
    template = ChatTemplate(
        "{% if enable_thinking is defined and not enable_thinking %}off{% else %}on{% endif %}"
    )
    assert template.render([USER]) == "on"
    assert template.render([USER], enable_thinking=False) == "off"


def test_where_templates_are_found():
    both = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    assert find_template(both) == "a"
    assert find_template(both, tools=True) == "b"
    assert find_template({"tokenizer.chat_template": "a"}, tools=True) is None
    assert find_template({}) is None
    with pytest.raises(ModelError, match="must be a string"):
        find_template({"tokenizer.chat_template": 3})
    assert "--chat-template" in str(no_template())


def test_named_templates_of_a_folder(tmp_path):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": named}))
    assert (folder_template(tmp_path), folder_template(tmp_path, "tool_use")) == ("a", "b")
    config.write_text(json.dumps({"chat_template": "c"}))
    assert (folder_template(tmp_path), folder_template(tmp_path, "tool_use")) == ("c", None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("d")
    assert (folder_template(tmp_path), folder_template(tmp_path, "tool_use")) == ("c", "d")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% if x %}", "line 2"),
        ("{{ x|nofilter }}", "line 1: No filter named 'nofilter'"),
        ("{% include 'other' %}", "line 1: other files"),
        ("{% import 'other' as o %}", "other files"),
        ("{% from 'other' import o %}", "other files"),
        ("\n\n{% extends 'other' %}", "line 3: other files"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
        ("{% for a in b %}" * 40 + "{% endfor %}" * 40, "nested|indentation"),
        ("{{ " + "9" * 5000 + " }}", "digits"),
        ("x" * 200_000, "200000 characters"),
    ],
)
def test_bad_source_is_an_error_at_construction(source, words):
    with pytest.raises(ModelError, match=words) as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


GROW = "{% set ns = namespace(x=START) %}{% for i in range(90) %}{% set ns.x = NEXT %}{% endfor %}"
MANY = (
    "{% set l = range(99999) | list %}{% set s = 'a' * 1000000 %}{% for i in range(99999) %}BODY{% endfor %}"
)


def grow(start: str, following: str, after: str = "") -> str:
    return GROW.replace("START", start).replace("NEXT", following) + after


def many(body: str) -> str:
    return MANY.replace("BODY", body)


HOSTILE = {
    "reads a dunder": "{{ ''.__class__ }}",
    "reads a dunder by subscript": "{{ ''['__class__'] }}",
    "reads globals": "{{ raise_exception.__globals__ }}",
    "reads through format": "{{ '{0.__class__}'.format(1) }}",
    "reads through format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "reads through map": "{{ [''] | map(attribute='__class__') | list }}",
    "reads the context": "{{ self._TemplateReference__context }}",
    "changes the messages": "{{ messages.append(1) }}",
    "changes a message": "{{ messages[0].update(role='x') }}",
    "sets on a message": "{% set messages.x = 1 %}",
    "throws into a generator": "{{ (range(9) | map('string')).throw(1) }}",
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop of nothing": "{% for a in range(9999) %}{% for b in range(9999) if a < 0 %}{% endfor %}"
    "{% endfor %}",
    "times": "{{ 'a' * 10**9 }}",
    "times in a list": "{{ [1] * 10**9 }}",
    "times, constant": "{{ ('a' * 10**9) | length }}",
    "center": "{{ 'a' | center(10**9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:1000000000d}'.format(1) }}",
    "format nested width": "{{ '{:{}d}'.format(1, 10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "encode": "{{ 'a'.encode('utf-32') }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "join filter": "{{ range(99999) | join('a' * 100000) }}",
    "join method": "{{ ('a' * 100000).join(range(99999) | map('string')) }}",
    "replace filter": "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}",
    "replace method": "{{ ('a' * 100000).replace('a', 'a' * 100000) }}",
    "concat doubling": grow("'ab'", "ns.x ~ ns.x"),
    "plus doubling": grow("'ab'", "ns.x + ns.x"),
    "list doubling": grow("[1]", "ns.x + ns.x"),
    "set block doubling": grow("'ab'", "ns.x ~ y").replace(
        "{% set ns.x", "{% set y %}{{ ns.x }}{% endset %}{% set ns.x"
    ),
    "shared lists": grow("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "shared tuples": grow("(1, 2)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "shared dicts": grow("{}", "{1: ns.x, 2: ns.x}", "{{ ns.x | tojson }}"),
    "deep": grow("[1]", "[ns.x]", "{{ ns.x }}").replace("90", "9000"),
    "deep tuples": grow("(1, 2)", "(ns.x,)", "{{ {ns.x: 1} }}").replace("90", "99999"),
    "squaring": grow("7", "ns.x * ns.x"),
    "power": "{{ 2 ** (10**9) }}",
    "big number by text": "{{ ('f' * 1000000) | int(0, 16) }}",
    "macro recursion": "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "macro tree": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "call blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 18
    + "{% endcall %}" * 18,
    "block recursion": "{% block a %}{{ self.a() }}{% endblock %}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "json indent": "{{ messages | tojson(indent=10**9) }}",
    "json indent text": "{{ messages | tojson(indent='a' * 1000000) }}",
    "json separators": "{{ messages | tojson(separators=('a' * 1000000, 'b')) }}",
    "indent": "{{ 'a' | indent(10**9, true) }}",
    "indent text": "{{ ('a\n' * 100000) | indent('a' * 100000) }}",
    "slice": "{{ 'a' | slice(10**9) | list }}",
    "batch": "{{ 'a' | batch(10**9, 'x') | list }}",
    "round": "{{ 1.5 | round(10**9, 'floor') }}",
    "sum of lists": "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "date width": "{{ strftime_now('%100000000d') }}",
    "date length": "{{ strftime_now('%Y' * 100000) }}",
    "long output": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
    "cycle": "{% set c = cycler(*range(99999)) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}" * 9,
    "splat": "{% macro m() %}{% endmacro %}" + many("{{ m(*l) }}{{ varargs == l }}"),
    **{
        f"many {body}": many(body)
        for body in (
            "{% if -1 in l %}{% endif %}",
            "{% if -1 is in l %}{% endif %}",
            "{% if l == range(99999) | list %}{% endif %}",
            "{% if -1 in l | map('abs') %}{% endif %}",
            "{% if 'b' in s %}{% endif %}",
            "{% set x = l[:] %}",
            "{% set x = s[1:] %}",
            "{% set x = l | sort %}",
            "{% set x = l | unique | list %}",
            "{% set x = s | upper %}",
            "{% set x = s | title %}",
            "{% set x = s | list %}",
            "{% set x = s.count('ab') %}",
            "{% set x = s.split('a') %}",
            "{% set x = {s ~ i: 1} %}",
            "{% set x = loop.cycle(*l) %}",
            "{% set x = l | select('mapping') | list %}",
            "{% set x = range(99999) | sum %}",
            "{% set x = range(99999) | max %}",
            "{% if 'a' in range(99999) %}{% endif %}",
            "{% set x = loop.changed(l if i % 2 else l[:]) %}",
            "{% set x = i | default(*l) %}",
            "{% set x = i | batch(99999, 'x') | list %}",
            "{% set x = s.strip('b' * 100000 ~ 'a') %}",
            "{% set x = s.rfind('b' ~ s[:500000]) %}",
            "{% set x = l | map(attribute='a.' * 100000) | list %}",
            "{% set x = [{}] | sort(attribute='a,' * 100000) %}",
            "{% set x = [{}] | join('', attribute='a.' * 100000) %}",
            "{% set x = {(s, l | list): 1} %}",
            "{% set x = dict([[s ~ i, 1]]) %}",
        )
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_is_stopped(name):
    messages = [dict(USER)]
    template = ChatTemplate(HOSTILE[name])
    with pytest.raises(RequestError, match="chat template") as caught:
        template.render(messages)
    assert "\n" not in str(caught.value)
    assert messages == [USER]


def test_long_chats_render():
    turns = [USER, {"role": "assistant", "content": "yes " * 200}] * 500
    text = ChatTemplate(SMOLLM2_LIKE).render(turns)
    assert text.count("<|im_end|>") == 1000


def test_a_quadratic_template_renders_a_long_chat():
    source = (
        "{% for m in messages %}{% set at = loop.index0 %}{% set ns = namespace(last=true) %}"
        "{% for other in messages[at + 1:] %}{% if other.role == 'user' %}{% set ns.last = false %}"
        "{% endif %}{% endfor %}{% if ns.last %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    assert ChatTemplate(source).render([USER] * 300) == "[hi]"


PART = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": ""}, ""),
        ({"role": "user", "content": []}, ""),
        ({"role": "user", "content": [PART, {"type": "text", "text": "b"}]}, "ab"),
        ({"role": "tool", "content": [PART]}, "a"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, ""),
        ({"role": "assistant", "tool_calls": [CALL]}, ""),
    ],
)
def test_contents_accepted(message, content):
    (out,) = normalise_messages([message])
    assert out["content"] == content


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": [PART, IMAGE]}], "messages[0].content[1].type"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_wrong_messages_are_named(messages, field):
    with pytest.raises(RequestError) as caught:
        normalise_messages(messages)
    assert caught.value.param == field
    assert str(caught.value).startswith(field)


def test_tool_arguments_become_an_object_and_broken_ones_stay():
    broken = {"function": {"name": "f", "arguments": '{"x": '}}
    empty = {"function": {"name": "f", "arguments": ""}}
    message = {"role": "assistant", "tool_calls": [CALL, broken, empty]}
    calls = normalise_messages([message])[0]["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == [{"x": "é"}, '{"x": ', {}]
    assert CALL["function"]["arguments"] == '{"x": "é"}'


def test_developer_is_system_unless_the_template_knows_it():
    messages = [{"role": "developer", "content": "x"}]
    assert ChatTemplate("{{ messages[0].role }}").render(messages) == "system"
    source = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert ChatTemplate(source).render(messages) == "yes"
