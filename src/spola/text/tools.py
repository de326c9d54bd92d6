"""Tools: how a model is told of them, how its calls are read, and the grammar of calls it must make.

Which way of writing a model has is seen in its chat template. A template that knows no tools gets them in a
system message, in the form of Hermes 2, and calls and results in the texts of messages. Nothing is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spola.core.errors import RequestError
from spola.text.call_formats import HermesReader, LlamaReader, MistralReader
from spola.text.grammar import Source, json_source
from spola.text.parts import Reader
from spola.text.pythonic import PythonicReader

__all__ = ["FORMATS", "Tool", "ToolFormat", "call_sources", "format_of", "parse_tools", "taught"]

MAX_TOOLS = 256
MAX_CALLS = 16  # of one answer, where a grammar forces them
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters``: a JSON Schema of the arguments object."""

    name: str
    parameters: dict[str, Any]
    strict: bool
    given: Mapping[str, Any]  # as the template gets to see it


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way of writing calls. ``marks``: texts that may be control tokens and must be seen.

    ``before``, ``between`` and ``after`` stand around the calls that a grammar forces, ``head`` and ``tail``
    around the arguments of one; NAME is its name as JSON text, BARE as it is.
    """

    name: str
    reader: Callable[[Sequence[Tool]], Reader]
    marks: tuple[str, ...] = ()
    before: str = ""
    between: str = ""
    after: str = ""
    head: str = '{"name": NAME, "arguments": '
    tail: str = "}"
    trigger: str = ""  # text that begins the calls, where there is one


def _names(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)


def _hermes(tools: Sequence[Tool]) -> Reader:
    return HermesReader(_names(tools), {tool.name: tool.parameters for tool in tools})


FORMATS = {
    "hermes": ToolFormat(
        "hermes",
        _hermes,
        marks=("<tool_call>", "</tool_call>"),
        head='<tool_call>\n{"name": NAME, "arguments": ',
        tail="}\n</tool_call>",
        between="\n",
        trigger="<tool_call>",
    ),
    "mistral": ToolFormat(
        "mistral",
        lambda tools: MistralReader(_names(tools)),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        before="[TOOL_CALLS][",
        between=", ",
        after="]",
        trigger="[TOOL_CALLS]",
    ),
    "mistral-args": ToolFormat(
        "mistral-args",
        lambda tools: MistralReader(_names(tools)),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        head="[TOOL_CALLS]BARE[ARGS]",
        tail="",
        trigger="[TOOL_CALLS]",
    ),
    "llama": ToolFormat(
        "llama",
        lambda tools: LlamaReader(_names(tools)),
        marks=("<|python_tag|>",),
        head='{"name": NAME, "parameters": ',
        between="; ",
    ),
    "pythonic": ToolFormat(
        "pythonic",
        lambda tools: PythonicReader(_names(tools)),
        marks=("<|python_start|>", "<|python_end|>", "<function_calls>", "</function_calls>"),
    ),
}


def format_of(template: str) -> ToolFormat | None:
    """The way a template's model writes calls; None when the template knows no tools."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return FORMATS["mistral-args" if "[ARGS]" in template else "mistral"]
    if "<tool_call>" in template:
        return FORMATS["hermes"]
    if "<function_calls>" in template or "<|python_start|>" in template or "[func_name1(" in template:
        return FORMATS["pythonic"]
    if "<|python_tag|>" in template or '"parameters"' in template:
        return FORMATS["llama"]
    return FORMATS["hermes"]


def parse_tools(tools: Sequence[Any]) -> tuple[Tool, ...]:
    """OpenAI's ``tools`` checked. Raises RequestError naming the field."""
    if not isinstance(tools, (list, tuple)):
        raise _error("tools", "must be a list")
    if len(tools) > MAX_TOOLS:
        raise _error("tools", f"has {len(tools)} entries; {MAX_TOOLS} at most")
    out: list[Tool] = []
    for place, tool in enumerate(tools):
        found = _tool(f"tools[{place}]", tool)
        if any(found.name == other.name for other in out):
            raise _error(f"tools[{place}].function.name", f"{found.name!r} is there twice")
        out.append(found)
    return tuple(out)


def _tool(field: str, tool: Any) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise _error(f"{field}.type", "must be function")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _error(f"{field}.function", "must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _error(f"{field}.function.name", "must be 1 to 128 letters, digits, or _ . : -")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _error(f"{field}.function.parameters", "must be a JSON Schema object")
    if function.get("description") is not None and not isinstance(function["description"], str):
        raise _error(f"{field}.function.description", "must be a string")
    return Tool(name, dict(parameters or {}), function.get("strict") is True, tool)


def _error(field: str, what: str) -> RequestError:
    return RequestError(f"{field} {what}", param=field)


def call_sources(
    tools: Sequence[Tool],
    form: ToolFormat,
    special: Mapping[str, int],
    *,
    many: bool,
    indices: Mapping[str, int],
    behind: str = "",
) -> tuple[str, list[Source]]:
    """The rule ``calls`` as Lark text, and the grammars of the arguments that it refers to.

    ``special``: marks that are control tokens, with their ids. ``indices``: places of the tools in the
    request, for errors. ``behind``: what the text of the first call begins with has been written already.
    Raises RequestError with the place in a schema that cannot be enforced.
    """
    first, later, sources = [], [], []
    for tool in tools:
        number = indices[tool.name]
        head = form.head.replace("NAME", json.dumps(tool.name)).replace("BARE", tool.name)
        rest = f"@arguments{number} {_lark(form.tail, special)}".strip()
        first.append(f"{_lark((form.before + head).removeprefix(behind), special)} {rest}")
        later.append(f"{_lark(head, special)} {rest}")
        param = f"tools[{number}].function.parameters"
        sources.append(json_source(_arguments(tool), param, name=f"arguments{number}"))
    more = f"({_lark(form.between, special)} call){{0,{MAX_CALLS - 1}}}".replace("( ", "(") if many else ""
    lines = [f"calls: first {more} {_lark(form.after, special)}", "first: " + " | ".join(first)]
    lines += ["call: " + " | ".join(later)] if many else []
    return "\n".join(lines), sources


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of the arguments; no names beyond those it has, which is within what it allows."""
    schema = {"type": "object", "properties": {}, **tool.parameters}
    closed = not {"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "minProperties"} & set(schema)
    return {"additionalProperties": False, **schema} if closed else schema


def _lark(text: str, special: Mapping[str, int]) -> str:
    """``text`` as a sequence of Lark items: strings, and tokens where it has marks."""
    if not text:
        return ""
    pattern = "|".join(re.escape(mark) for mark in special)
    pieces = re.split(f"({pattern})", text) if pattern else [text]
    return " ".join(f"<[{special[p]}]>" if p in special else json.dumps(p) for p in pieces if p)


_TEACHING = """You may call functions. These are the functions, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and arguments as a JSON object inside tags:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>
The result comes back inside <tool_response> tags."""


def taught(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """``messages`` (normalised) for a template that knows no tools: everything becomes text.

    The tools go into the system message; calls into the assistant's; results, those in a row together, into
    one of the user.
    """
    out: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "assistant" and message.get("tool_calls"):
            calls = "\n".join(_call_text(call["function"]) for call in message["tool_calls"])
            content = f"{content}\n{calls}" if content else calls
            out.append({"role": role, "content": content})
        elif role == "tool":
            text = f"<tool_response>\n{content}\n</tool_response>"
            if out and out[-1].get("results"):
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text, "results": True})
        else:
            out.append(dict(message))
    for message in out:
        message.pop("results", None)
    if not tools:
        return out
    listed = "\n".join(json.dumps(tool.given, ensure_ascii=False) for tool in tools)
    teaching = _TEACHING.format(tools=listed)
    if out and out[0]["role"] in ("system", "developer"):
        out[0]["content"] = f"{out[0]['content']}\n\n{teaching}"
        return out
    return [{"role": "system", "content": teaching}, *out]


def _call_text(function: Mapping[str, Any]) -> str:
    body = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"
