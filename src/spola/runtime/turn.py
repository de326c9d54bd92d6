"""A turn of a conversation made ready: ids, the grammar of what may come, and who reads what comes.

One way for the server's routes, for ``LLM.chat`` and for the command line. Tools, structured output and
reasoning meet here. Sends nothing; may take milliseconds, so not on the event loop's thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams
from spola.runtime.prompts import encode_chat
from spola.text.chat import ChatTemplate, no_template
from spola.text.messages import normalise_messages
from spola.text.parts import Part, PlainReader, Reader
from spola.text.reasoning import MARKS, ReasoningReader
from spola.text.tools import FORMATS, Tool, ToolFormat, call_sources, format_of, parse_tools, taught

if TYPE_CHECKING:
    from spola.runtime.service import Service
    from spola.text.grammar import Grammar, Source

__all__ = ["Asked", "Turn", "prepare_turn"]

_CHOICES = ("none", "auto", "required")
_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a caller wants of a turn, in OpenAI's words.

    ``tool_choice`` is none, auto, required, or ``{"type": "function", "function": {"name": …}}``; None is
    auto. ``parallel`` False: one call at most; None: one where the model must call and was never taught how.
    ``form`` is what the answer must look like, and ``form_field`` the field that says so, for errors.
    ``variables`` are further names for the template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] = ()
    tool_choice: Any = None
    parallel: bool | None = None
    form: StructuredOutputsParams | None = None
    form_field: str = "structured_outputs"
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    open_turn: bool = True
    continue_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """``ids`` and ``grammar`` are for ``Service.submit``, as is ``visible``; ``reader`` makes a Reader for
    each answer. ``unused``: names of ``variables`` and the like that the template does not read.
    """

    ids: list[int]
    grammar: Grammar | None
    reader: Callable[[], Reader]
    visible: frozenset[int]
    unused: tuple[str, ...] = ()


def prepare_turn(service: Service, asked: Asked) -> Turn:
    """Check, render, tokenize and compile. Raises RequestError naming the field."""
    template = service.template
    if template is None:
        raise no_template()
    tools, must = _chosen(parse_tools(asked.tools or ()), asked.tool_choice)
    if tools:
        template = template.with_tools
    named = must and isinstance(asked.tool_choice, Mapping) and asked.tool_choice.get("type") == "function"
    found = format_of(template.source)
    form = found or FORMATS["hermes"]
    one = asked.parallel is False or named or (must and found is None and asked.parallel is None)
    held = bool(tools) and (must or one or asked.form is not None or any(tool.strict for tool in tools))
    if held and form.name == "pythonic":
        form = FORMATS["hermes"]  # no grammar writes Python from a JSON Schema
    variables, unused = _variables(template, asked)
    messages = normalise_messages(asked.messages, keep_developer=True)
    if found is None and (tools or any(m.get("tool_calls") or m["role"] == "tool" for m in messages)):
        messages = taught(messages, tools)
        shown: list[Mapping[str, Any]] = []
    else:
        shown = [tool.given for tool in tools]
    ids, rendered = encode_chat(
        service.tokenizer,
        template,
        messages,
        service.check_length,
        tools=shown,
        variables=variables,
        open_turn=asked.open_turn,
        continue_final=asked.continue_final,
    )
    marks = next((pair for pair in MARKS if pair[1] in template.source), MARKS[0])
    opened = asked.open_turn and rendered.rstrip().endswith(marks[0])
    special = _special(service, (*(form.marks if tools else ()), *marks))
    thinks = opened or (marks[1] in template.source and not rendered.rstrip().endswith(marks[1]))
    parts = _grammar_parts(service, asked, tools, form, special, must=must, held=held, many=not one)
    grammar = None
    if parts is not None:
        rule, sources = parts
        top = _top(rule, marks, special, opened=opened, thinks=thinks)
        field_name = asked.form_field if asked.form is not None else "tools"
        grammar = service.grammars.compile([top, *sources], field_name)

    def reader() -> Reader:
        inner = form.reader(tools) if tools else PlainReader()
        if must:
            inner = _CallsOnly(inner)
        return ReasoningReader(inner, opened=opened, marks=marks)

    return Turn(
        ids=ids,
        grammar=grammar,
        reader=reader,
        visible=frozenset(special.values()),
        unused=unused,
    )


class _CallsOnly:
    """A Reader for answers that are calls: what is no call is the beginning of one that was cut off."""

    reasoned = 0
    plain = False

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def push(self, text: str) -> list[Part]:
        return [part for part in self._inner.push(text) if part.kind != "content"]

    def finish(self) -> list[Part]:
        return [part for part in self._inner.finish() if part.kind != "content"]


def _chosen(tools: tuple[Tool, ...], choice: Any) -> tuple[tuple[Tool, ...], bool]:
    """The tools that may be called, and whether one must be."""
    if choice is None or (isinstance(choice, str) and choice in _CHOICES):
        if choice == "none":
            return (), False
        if choice == "required" and not tools:
            raise RequestError("tool_choice required needs tools", param="tool_choice")
        return tools, choice == "required"
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, Mapping) and allowed.get("mode") in ("auto", "required"):
            listed = allowed.get("tools")
            names = [_function_name(entry) for entry in listed] if isinstance(listed, list) else []
            return _named(tools, names), allowed["mode"] == "required"
    name = _function_name(choice)
    if name is None:
        raise RequestError(
            f"tool_choice must be {', '.join(_CHOICES)}, or name a function: "
            '{"type": "function", "function": {"name": …}}',
            param="tool_choice",
        )
    return _named(tools, [name]), True


def _function_name(entry: Any) -> str | None:
    if not isinstance(entry, Mapping) or entry.get("type") != "function":
        return None
    function = entry.get("function", entry)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _named(tools: tuple[Tool, ...], names: Sequence[str | None]) -> tuple[Tool, ...]:
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise RequestError(f"tool_choice: there is no tool {name!r:.100}", param="tool_choice")
    if not names:
        raise RequestError("tool_choice allows no tool", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def _variables(template: ChatTemplate, asked: Asked) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Names for the template, and those of them that it does not read."""
    for name in asked.variables:
        if name in _RESERVED or not name.isidentifier():
            raise RequestError(
                f"chat_template_kwargs: {name[:80]!r} cannot be set", param="chat_template_kwargs"
            )
    unused = [f"chat_template_kwargs.{name}" for name in asked.variables if name not in template.source]
    variables = dict(asked.variables)
    if asked.effort is not None:
        given = {"reasoning_effort": asked.effort}
        given |= {"enable_thinking": False} if asked.effort == "none" else {}  # type: ignore[dict-item]
        if not any(name in template.source for name in given):
            unused.append("reasoning_effort")
        variables = {**given, **variables}
    return variables, tuple(unused)


def _special(service: Service, marks: Sequence[str]) -> dict[str, int]:
    """Those of ``marks`` that are control tokens, with their ids."""
    vocab = service.tokenizer.vocab
    found = {mark: vocab.ids[mark] for mark in marks if mark in vocab.ids}
    return {mark: token for mark, token in found.items() if vocab.is_special(token)}


def _grammar_parts(
    service: Service,
    asked: Asked,
    tools: tuple[Tool, ...],
    form: ToolFormat,
    special: Mapping[str, int],
    *,
    must: bool,
    held: bool,
    many: bool,
) -> tuple[str, list[Source]] | None:
    """The rule ``body`` of the answer with what it refers to, or None where anything goes.

    Calls are free text unless something is asked of them: required, strict, one only, or a form beside them.
    """
    from spola.text.grammar import source_of

    indices = {tool.name: place for place, tool in enumerate(parse_tools(asked.tools or ()))}
    answer = None if asked.form is None else source_of(asked.form, asked.form_field)
    if must:
        rule, sources = call_sources(tools, form, special, many=many, indices=indices)
        return f"body: calls\n{rule}", sources
    if not held:
        return None if answer is None else ("body: @answer", [answer])
    loose = tuple(tool if tool.strict or _enforceable(service, tool) else _loosened(tool) for tool in tools)
    trigger = "" if answer is not None or form.trigger in special else form.trigger
    rule, sources = call_sources(loose, form, special, many=many, indices=indices, behind=trigger)
    if answer is not None:
        return f"body: calls | @answer\n{rule}", [*sources, answer]
    if trigger:  # it ends the text; the first call goes on behind it
        text = f"before[suffix={json.dumps(trigger)}]: /(.|\\n)*/\nSOME: /(.|\\n)*/"
        return f"body: before calls | SOME\n{text}\n{rule}", sources
    if form.trigger:
        return f"body: SOME? calls | SOME\nSOME: /(.|\\n)+/\n{rule}", sources
    # Bare JSON: an answer that begins like a call is one.
    return f"body: calls | OTHER\nOTHER: /[^{{\\s](.|\\n)*/\n{rule}", sources


def _enforceable(service: Service, tool: Tool) -> bool:
    from spola.text.grammar import json_source

    try:
        service.grammars.compile([json_source(tool.parameters, "tools")], "tools")
    except RequestError:
        return False
    return True


def _loosened(tool: Tool) -> Tool:
    return Tool(tool.name, {"type": "object", "additionalProperties": True}, False, tool.given)


def _top(
    rule: str, marks: tuple[str, str], special: Mapping[str, int], *, opened: bool, thinks: bool
) -> Source:
    """Where an answer begins: with reasoning, if the model does, which nothing restricts."""
    from spola.text.grammar import lark_source

    if not thinks:
        return lark_source(f"start: body\n{rule}", name="top")
    start, end = marks
    if end in special:
        closing = f"THOUGHT? <[{special[end]}]> GAP?"
        lines = ["THOUGHT: /(.|\\n)+/", "GAP: /\\n{1,2}/"]
    else:
        closing = "thought GAP?"
        lines = [f"thought[suffix={json.dumps(end)}]: /(.|\\n)*/", "GAP: /\\n{1,2}/"]
    opening = f"<[{special[start]}]>" if start in special else json.dumps(start)
    begin = f"start: {closing} body" if opened else f"start: {opening} {closing} body | body"
    return lark_source("\n".join([begin, *lines, rule]), name="top")
