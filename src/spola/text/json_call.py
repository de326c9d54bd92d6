"""One tool call written as a JSON object, read character by character.

``{"name": "f", "arguments": {...}}``: the call is told as soon as its name and the beginning of its arguments
are there, the arguments piece by piece as they stand. Nothing is read twice, so it does not matter how the
text is cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["JsonCall", "Value"]

_BLANK = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class Value:
    """Finds the end of one JSON value. ``push`` says True with the last character of a text, list or object.

    A number or word has no last character of its own: ``ends_before`` is asked first.
    """

    def __init__(self, first: str) -> None:
        self._string = first == '"'
        self._depth = int(first in "{[")
        self._escaped = False
        self.scalar = not self._string and not self._depth

    def ends_before(self, char: str) -> bool:
        return self.scalar and (char in ",}]" or char in _BLANK)

    def push(self, char: str) -> bool:
        if self._string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._string = False
                return self._depth == 0
            return False
        if char == '"':
            self._string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


class JsonCall:
    """Reads one object. ``begin`` is told the name, ``more`` every piece of the arguments.

    ``need_arguments``: an object without arguments is no call, else it calls with ``{}``. ``known``: other
    names are no calls. ``text`` is what was read, ``begun`` whether the call has been told.
    """

    def __init__(
        self,
        begin: Callable[[str], None],
        more: Callable[[str], None],
        *,
        need_arguments: bool = False,
        known: frozenset[str] | None = None,
    ) -> None:
        self._begin = begin
        self._more = more
        self._need = need_arguments
        self._known = known
        self._at = self._open
        self._key = ""
        self._read: list[str] = []
        self._token: list[str] = []
        self._value = Value("x")
        self._name: str | None = None
        self._arguments: str | None = None
        self._given = False  # all arguments have been told or are known
        self.begun = False

    @property
    def text(self) -> str:
        return "".join(self._read)

    def push(self, char: str) -> bool | None:
        """None: go on. True: the object has ended here. False: this is no call, or broken from here on."""
        answer = self._at(char)
        if answer is not False:
            self._read.append(char)
        return answer

    def _open(self, char: str) -> bool | None:
        self._at = self._before_key
        return None if char == "{" else False

    def _before_key(self, char: str) -> bool | None:
        if char in _BLANK:
            return None
        if char == "}":
            return self._end()
        if char != '"':
            return False
        self._token, self._value, self._at = [char], Value(char), self._in_key
        return None

    def _in_key(self, char: str) -> bool | None:
        self._token.append(char)
        if self._value.push(char):
            key = _loads("".join(self._token))
            if key is None:
                return False
            self._key, self._at = key, self._colon
        return None

    def _colon(self, char: str) -> bool | None:
        if char == ":":
            self._at = self._before_value
            return None
        return None if char in _BLANK else False

    def _before_value(self, char: str) -> bool | None:
        if char in _BLANK:
            return None
        if char in ",}]:":
            return False
        if (self._key == "name" and char != '"') or (self._key in _ARGUMENTS and self._given):
            return False
        self._token, self._value, self._at = [char], Value(char), self._in_value
        if self._key in _ARGUMENTS and char == "{" and self._name is not None:
            if not self._tell():
                return False
            self._more(char)
        return None

    def _in_value(self, char: str) -> bool | None:
        if self._value.ends_before(char):
            return self._value_done() and self._after_value(char)
        self._token.append(char)
        if self.begun and not self._given:
            self._more(char)
        if self._value.push(char):
            return None if self._value_done() else False
        return None

    def _value_done(self) -> bool:
        self._at = self._after_value
        text = "".join(self._token)
        if self._key == "name":
            self._name = _loads(text)
            return self._name is not None
        if self._key in _ARGUMENTS:
            self._given = True
            if not self.begun:
                self._arguments = _object_text(text)
                return self._arguments is not None
        return True

    def _after_value(self, char: str) -> bool | None:
        if char in _BLANK:
            return None
        if char == ",":
            self._at = self._before_key
            return None
        return self._end() if char == "}" else False

    def _end(self) -> bool:
        if self.begun:
            return True
        if self._arguments is None and self._need:
            return False
        if not self._tell():
            return False
        self._more(self._arguments or "{}")
        return True

    def _tell(self) -> bool:
        if not self._name or (self._known is not None and self._name not in self._known):
            return False
        self.begun = True
        self._begin(self._name)
        return True


def _loads(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _object_text(text: str) -> str | None:
    """Arguments as the text of an object: as they are, out of a string, or ``{}`` for null."""
    if text.startswith("{"):
        return text
    value: Any = None
    if text != "null":
        value = _loads(text)
        if value is None:
            return None
    return value or "{}"
