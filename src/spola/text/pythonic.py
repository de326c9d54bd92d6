"""Tool calls written as Python: ``[f(a=1), g(b="x")]`` (Llama 3.2, Llama 4), or one a line between
``<function_calls>`` tags (Olmo 3).

Values are read as Python literals, or as JSON, and come out as JSON. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from spola.text.call_reader import CallReader

__all__ = ["PythonicReader"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME = 256
_MAX_VALUE = 1 << 16
_WORDS = {"true": True, "false": False, "null": None}


class PythonicReader(CallReader):
    """Only calls of ``known`` functions with named arguments count: a list may be an answer too."""

    STARTS = ("<|python_start|>", "<function_calls>")
    ENDS = ("<|python_end|>", "</function_calls>")

    def __init__(self, known: frozenset[str]) -> None:
        super().__init__(known)
        self._state = self._beginning
        self._lines = False
        self._tool = ""
        self._told = False
        self._first = True
        self._value = _Literal()

    def _beginning(self) -> bool:
        if not self._skip_blanks():
            return False
        tags = [self._starts(tag) for tag in self.STARTS]
        if True in tags:
            tag = self.STARTS[tags.index(True)]
            self._lines = tag == self.STARTS[1]
            self._raw += tag
            self._buffer = self._buffer[len(tag) :]
            if self._lines:
                self._state = self._call
            return True
        if None in tags:
            return False
        if self._buffer[0] != "[":
            return self._no_call()
        self._raw += "["
        self._buffer = self._buffer[1:]
        self._state = self._call
        return True

    def _content(self) -> bool:
        tag = self._until(*self.STARTS)
        if tag is None:
            return False
        self._buffer = tag + self._buffer
        self._state = self._beginning
        return True

    def _call(self) -> bool:
        """``name(``; or the end of the list."""
        if not self._skip_blanks():
            return False
        end = self._over()
        if end is not None:
            return end
        name, found, rest = self._buffer.partition("(")
        plain = _NAME.fullmatch(name.strip())
        if not found:
            return self._no_call() if not plain or len(name) > _MAX_NAME else False
        if not plain or len(name) > _MAX_NAME or name.strip() not in self._known:
            return self._no_call()
        self._tool, self._told, self._first = name.strip(), False, True
        self._raw += f"{name}("
        self._buffer = rest
        self._state = self._argument
        return True

    def _over(self) -> bool | None:
        """At the end of all calls: to the content behind. None: not there; False: too short to tell."""
        if self._lines:
            ended = self._starts(self.ENDS[1])
            if ended is None:
                return False
            size = len(self.ENDS[1]) if ended else 0
        else:
            ended, size = self._buffer[0] == "]", 1
        if not ended or not self._calls:
            return None
        self._buffer = self._buffer[size:]
        return self._done(self._trailer)

    def _trailer(self) -> bool:
        """The closing tag of Llama 4 is dropped."""
        if not self._buffer.lstrip():
            return False
        self._buffer = self._buffer.lstrip()
        ended = self._starts(self.ENDS[0])
        if ended is None:
            return False
        self._buffer = self._buffer[len(self.ENDS[0]) if ended else 0 :]
        self._state = self._content
        return True

    def _argument(self) -> bool:
        """``key=``, or the end of the call."""
        if not self._skip_blanks():
            return False
        if self._buffer[0] == ")":
            self._tell()
            self._more("{}" if self._first else "}")
            self._buffer = self._buffer[1:]
            return self._done(self._separator)
        key, found, rest = self._buffer.partition("=")
        if not found and _KEY.fullmatch(key.strip()) and len(key) <= _MAX_NAME:
            return False
        if not found or not _KEY.fullmatch(key.strip()) or len(key) > _MAX_NAME:
            return self._broken()
        self._tell()
        name = json.dumps(key.strip(), ensure_ascii=False)
        self._more(("{" if self._first else ", ") + name + ": ")
        self._first, self._value = False, _Literal()
        self._buffer = rest
        self._state = self._literal
        return True

    def _literal(self) -> bool:
        for at, char in enumerate(self._buffer):
            if self._value.push(char):
                self._more(self._value.json())
                self._buffer = self._buffer[at + (char == ",") :]
                self._state = self._argument
                return True
        self._buffer = ""
        return False

    def _separator(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n,;" if self._lines else " \t\r\n")
        if not self._buffer:
            return False
        if self._buffer[0] == "," and not self._lines:
            self._buffer = self._buffer[1:]
        self._state = self._call
        return True

    def _tell(self) -> None:
        if not self._told:
            self._told, self._raw = True, ""
            self._begin(self._tool)

    def _broken(self) -> bool:
        """Not what a call looks like: no call, or the end of one that was told already."""
        if not self._told:
            return self._no_call()
        self._more("{}" if self._first else "}")
        return self._done(self._content)


class _Literal:
    """One Python literal, up to the comma or parenthesis behind it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._quote = ""
        self._escaped = False
        self._depth = 0

    def push(self, char: str) -> bool:
        """True: the literal has ended before ``char``."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif self._depth and char in ")]}":
            self._depth -= 1
        elif not self._depth and char in ",)":
            return True
        self._text.append(char)
        return False

    def json(self) -> str:
        text = "".join(self._text).strip()
        if len(text) > _MAX_VALUE:
            return json.dumps(text, ensure_ascii=False)
        value: Any = text
        if text in _WORDS:
            value = _WORDS[text]
        else:
            for read in (_literal, json.loads):
                try:
                    value = read(text)
                    break
                except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                    continue
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in somebody else's text
        return ast.literal_eval(text)
