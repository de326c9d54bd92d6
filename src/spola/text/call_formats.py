"""Readers of the ways in which models write tool calls.

Hermes, Qwen and those we teach: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, repeatable; inside
the tags also Qwen3-Coder's ``<function=NAME><parameter=KEY>value</parameter></function>``. Llama 3: bare
``{"name": …, "parameters": {…}}`` at the start of the answer or behind ``<|python_tag|>``, ``;`` between.
Mistral: ``[TOOL_CALLS]`` and a JSON list, or name, ``[ARGS]`` and an object. Python: ``text.pythonic``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spola.text.call_reader import CallReader
from spola.text.json_call import JsonCall, Value

__all__ = ["HermesReader", "LlamaReader", "MistralReader"]

_MAX_NAME = 256


class _MarkedReader(CallReader):
    """Content up to the marker ``OPEN``; what follows it begins in ``_opening``."""

    OPEN = ""

    def _content(self) -> bool:
        if self._until(self.OPEN) is None:
            return False
        self._raw = self.OPEN
        self._state = self._opening
        return True

    def _opening(self) -> bool:
        raise NotImplementedError


class HermesReader(_MarkedReader):
    """``schemas``: the parameters of each tool, for the types of Qwen3-Coder's values."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, known: frozenset[str] = frozenset(), schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(known)
        self._schemas = schemas or {}
        self._tool = ""
        self._first = True

    def _opening(self) -> bool:
        if not self._skip_blanks():
            return False
        if self._buffer[0] == "{":
            self._json = JsonCall(self._begin, self._more)
            self._state = self._object
            return True
        function = self._starts("<function=")
        if function is None:
            return False
        if not function:
            return self._no_call()
        self._state = self._function
        return True

    def _object(self) -> bool:
        return self._read_json(self._closing)

    def _closing(self) -> bool:
        """The closing tag, which a careless model may leave out."""
        self._buffer = self._buffer.lstrip()
        closed = self._starts(self.CLOSE) if self._buffer else None
        if closed is None:
            return False
        if closed:
            self._buffer = self._buffer[len(self.CLOSE) :]
        self._state = self._content
        return True

    def _function(self) -> bool:
        name, found, rest = self._buffer.removeprefix("<function=").partition(">")
        if len(name) > _MAX_NAME:
            return self._no_call()
        if not found:
            return False
        self._tool, self._first, self._raw = name.strip(), True, ""
        self._buffer = rest
        self._begin(self._tool)
        self._state = self._parameters
        return True

    def _parameters(self) -> bool:
        """Between parameters: the next one, or the end of the function."""
        self._buffer = self._buffer.lstrip()
        another = self._starts("<parameter=") if self._buffer else None
        ended = self._starts("</function>") if self._buffer else None
        if another:
            self._state = self._parameter
            return True
        if not ended and (another is None or ended is None):
            return False
        self._more("{}" if self._first else "}")
        self._buffer = self._buffer.removeprefix("</function>")
        return self._done(self._closing)

    def _parameter(self) -> bool:
        name, found, rest = self._buffer.removeprefix("<parameter=").partition(">")
        value, closed, rest = rest.partition("</parameter>")
        if not found or not closed:
            return False
        self._buffer = rest
        key = name.strip()
        text = value.removeprefix("\n").removesuffix("\n")
        self._more(("{" if self._first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._more(_typed(text, self._schemas.get(self._tool), key))
        self._first = False
        self._state = self._parameters
        return True


def _typed(text: str, schema: Any, key: str) -> str:
    """``text`` as JSON of the type that the tool's schema gives the parameter; a string where in doubt."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    wanted = properties.get(key) if isinstance(properties, Mapping) else None
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind not in (None, "string"):
        try:
            return json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


class LlamaReader(CallReader):
    """Only calls of ``known`` functions with parameters count: JSON may be an answer too."""

    TAG = "<|python_tag|>"

    def __init__(self, known: frozenset[str]) -> None:
        super().__init__(known)
        self._state = self._beginning

    def _beginning(self) -> bool:
        if not self._skip_blanks():
            return False
        tagged = self._starts(self.TAG)
        if tagged is None:
            return False
        if tagged:
            self._buffer = self._buffer[len(self.TAG) :]
            self._raw = ""
            return True
        if self._buffer[0] != "{":
            return self._no_call()
        self._json = JsonCall(self._begin, self._more, need_arguments=True, known=self._known)
        self._state = self._object
        return True

    def _object(self) -> bool:
        return self._read_json(self._between)

    def _between(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n;,")
        if not self._buffer:
            return False
        self._state = self._beginning
        return True

    def _content(self) -> bool:
        if self._until(self.TAG) is None:
            return False
        self._state = self._beginning
        return True


class MistralReader(_MarkedReader):
    """Both forms, told apart by what follows the marker."""

    OPEN, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

    def _opening(self) -> bool:
        if not self._skip_blanks():
            return False
        if self._buffer[0] == "[":
            self._raw += "["
            self._buffer = self._buffer[1:]
            self._state = self._item
        else:
            self._state = self._name
        return True

    def _item(self) -> bool:
        """A call of the list, or its end."""
        if not self._skip_blanks():
            return False
        if self._buffer[0] == ",":
            self._raw += ","
            self._buffer = self._buffer[1:]
            return True
        if self._buffer[0] == "]" and self._calls:
            self._buffer = self._buffer[1:]
            return self._done(self._content)
        if self._buffer[0] != "{":
            return self._no_call()
        self._json = JsonCall(self._begin, self._more)
        self._state = self._object
        return True

    def _object(self) -> bool:
        return self._read_json(self._item)

    def _name(self) -> bool:
        """``name[ARGS]{…}``, ``name[CALL_ID]id[ARGS]{…}`` or ``name{…}``."""
        at = self._buffer.find("{")
        if at < 0:
            if "\n" in self._buffer.strip() or len(self._buffer) > 2 * _MAX_NAME:
                return self._no_call()
            return False
        name = self._buffer[:at].strip().removesuffix(self.ARGS).partition(self.ID)[0].strip()
        if not name or "\n" in name or len(name) > _MAX_NAME:
            return self._no_call()
        self._raw = ""
        self._begin(name)
        self._value = Value("{")
        self._more("{")
        self._buffer = self._buffer[at + 1 :]
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        for at, char in enumerate(self._buffer):
            if self._value.push(char):
                self._more(self._buffer[: at + 1])
                self._buffer = self._buffer[at + 1 :]
                return self._done(self._content)
        if self._buffer:
            self._more(self._buffer)
        self._buffer = ""
        return False
