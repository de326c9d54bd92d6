"""What the readers of tool calls share: a buffer that states eat from, and blanks between calls.

A state looks at the beginning of the buffer and takes what it can decide on; what it cannot yet decide waits.
So the Parts do not depend on how the text was cut. Text that turns out to be no call is content.
"""

from __future__ import annotations

from collections.abc import Callable

from spola.text.json_call import JsonCall
from spola.text.parts import Part

__all__ = ["CallReader", "held"]


def held(text: str, *markers: str) -> int:
    """Length of the longest end of ``text`` that one of ``markers`` may go on from."""
    longest = 0
    for marker in markers:
        for n in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:n]):
                longest = n
                break
    return longest


class CallReader:
    """A Reader whose states are methods: each returns False when it needs more text.

    ``self._state`` is the state; ``self._final`` whether all text is there. Blanks around calls are dropped;
    all other text outside of calls is content, to the letter.
    """

    reasoned = 0
    plain = False

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        self._known = known
        self._state: Callable[[], bool] = self._content
        self._buffer = ""
        self._raw = ""  # read since the marker of a call that is not certain yet
        self._final = False
        self._parts: list[Part] = []
        self._gap = ""
        self._fresh = False  # nothing but calls and blanks so far or since the last call
        self._calls = 0
        self._json: JsonCall | None = None

    def push(self, text: str) -> list[Part]:
        """Take text in; the Parts that it completes."""
        self._buffer += text
        while self._state():
            pass
        return self._taken()

    def finish(self) -> list[Part]:
        """No more text comes."""
        self._final = True
        while self._buffer or self._raw:
            if not self._state():
                break
        self._give_up()
        self._say(self._buffer)
        self._buffer = ""
        if not self._fresh and self._gap:
            self._parts.append(Part("content", self._gap))
        return self._taken()

    def _content(self) -> bool:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        """Content; blanks at its end wait, because a call may follow."""
        if self._fresh:
            text = text.lstrip()
        if not text:
            return
        body = text.rstrip()
        if body:
            self._parts.append(Part("content", self._gap + body))
            self._gap = ""
            self._fresh = False
        self._gap += text[len(body) :]

    def _begin(self, name: str) -> None:
        self._gap = ""
        self._parts.append(Part("call", call=self._calls, name=name))
        self._calls += 1

    def _more(self, text: str) -> None:
        self._parts.append(Part("arguments", text, call=self._calls - 1))

    def _done(self, then: Callable[[], bool]) -> bool:
        """A call has ended: go on in ``then``."""
        self._raw, self._json = "", None
        self._fresh, self._gap = True, ""
        self._state = then
        return True

    def _give_up(self) -> None:
        """What looked like a call and is none is content."""
        raw = self._raw
        if self._json is not None:
            raw = "" if self._json.begun else raw + self._json.text
        self._raw, self._json = "", None
        self._say(raw)

    def _no_call(self) -> bool:
        self._give_up()
        self._state = self._content
        return True

    def _until(self, *markers: str) -> str | None:
        """Say content up to the first of ``markers`` and eat it: that marker, or None if none is there."""
        found = [(self._buffer.find(marker), marker) for marker in markers if marker in self._buffer]
        if not found:
            keep = 0 if self._final else held(self._buffer, *markers)
            cut = len(self._buffer) - keep
            self._say(self._buffer[:cut])
            self._buffer = self._buffer[cut:]
            return None
        at, marker = min(found)
        self._say(self._buffer[:at])
        self._buffer = self._buffer[at + len(marker) :]
        return marker

    def _skip_blanks(self) -> bool:
        """Eat blanks into the raw text; whether something is left."""
        rest = self._buffer.lstrip()
        self._raw += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        return bool(rest)

    def _starts(self, marker: str) -> bool | None:
        """Whether the buffer begins with ``marker``; None: it is too short to tell."""
        if self._buffer.startswith(marker):
            return True
        return None if not self._final and marker.startswith(self._buffer) else False

    def _read_json(self, then: Callable[[], bool]) -> bool:
        """Feed the buffer to the JSON call; ``then`` is the state after it."""
        assert self._json is not None
        for at, char in enumerate(self._buffer):
            answer = self._json.push(char)
            if answer is None:
                continue
            if answer or self._json.begun:
                self._buffer = self._buffer[at + bool(answer) :]
                return self._done(then)
            self._buffer = self._buffer[at:]
            return self._no_call()
        self._buffer = ""
        return False

    def _taken(self) -> list[Part]:
        """The Parts so far, neighbours of one kind joined."""
        out: list[Part] = []
        for part in self._parts:
            last = out[-1] if out else None
            if last is not None and part.kind == last.kind != "call" and part.call == last.call:
                out[-1] = Part(part.kind, last.text + part.text, part.call)
            else:
                out.append(part)
        self._parts = []
        return out
