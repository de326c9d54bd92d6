"""What the routes of other servers' protocols share: fields taken, set aside or refused by their own names.

A body is turned into that of a chat or a completion; here is what both ways of turning need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec

from spola.core.errors import RequestError
from spola.server.asks import Ask, Body
from spola.server.errors import ApiError, from_spola
from spola.server.schema import decode, parse_object
from spola.server.shelf import Shelf

__all__ = ["Table", "Taken", "check_window", "in_words", "object_of", "tagged", "within"]

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Table:
    """Fields that a protocol has beside those that are obeyed.

    ``refused``: the reason, and the values that ask for nothing. ``idle``: what can change no answer here
    (the server's own settings); it is told in the answer's head, like an unknown field.
    """

    refused: Mapping[str, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)
    idle: Sequence[str] = ()

    def take(self, raw: Any, kind: type[T], *, strict: bool = False, place: str = "") -> Taken[T]:
        """The checked fields of ``raw``, which is at ``place`` (``options.``). Raises ApiError 400."""
        if not isinstance(raw, Mapping):
            raise ApiError(400, f"{place[:-1]} must be an object", param=place[:-1])
        given = {name: value for name, value in raw.items() if value is not None}
        for name, (reason, neutral) in self.refused.items():
            if name in given and given.pop(name) not in neutral:
                raise ApiError(400, f"{place}{name} is not supported: {reason}", param=place + name)
        unused = [place + name for name in self.idle if given.pop(name, None) is not None]
        try:
            parsed = parse_object(given, kind, strict=strict)
        except ApiError as error:
            raise _placed(error, place) from None
        return Taken(parsed.request, (*unused, *(place + name for name in parsed.unknown)))


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """``unused``: fields without effect, as paths."""

    request: T
    unused: tuple[str, ...]


def object_of(body: Body) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError 400."""
    return decode(body) if isinstance(body, bytes) else dict(body)


@contextmanager
def in_words(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the chat route told with the client's names: ``names`` is ours -> theirs."""
    try:
        yield
    except RequestError as error:
        raise _renamed(from_spola(error), names) from None
    except ApiError as error:
        raise _renamed(error, names) from None


def tagged(shelf: Shelf, name: str | None) -> str | None:
    """``name`` without Ollama's ``:latest``, unless a model is called so."""
    known = {one for book in shelf.books for one in book.known}
    if name is None or name in known or not name.endswith(":latest"):
        return name
    return name.removesuffix(":latest")


def check_window(window: int | None, penalties: Sequence[float | None], place: str) -> None:
    """Refuse ``repeat_last_n`` where it would matter: our penalties count the whole text.

    ``penalties``: repetition (1 is off), then presence and frequency (0 is off).
    """
    repetition, *others = penalties
    active = repetition not in (None, 1) or any(others)
    if window not in (None, -1) and active:
        raise ApiError(
            400, f"{place} {window} is not supported: penalties count the whole text; give -1", param=place
        )


def within(ask: Ask, window: int | None, most: int, place: str) -> Ask:
    """``ask`` in a context of ``window`` tokens for prompt and answer; ``most`` is the server's own."""
    if window is None:
        return ask
    if not 0 < window <= most:
        raise ApiError(
            400, f"{place} must be from 1 to {most} (the server's --max-model-len), not {window}", param=place
        )
    room = window - len(ask.prompts[0])
    if room <= 0:
        raise ApiError(
            400,
            f"the prompt has {len(ask.prompts[0])} tokens; {place} allows {window} for prompt and answer",
            param=place,
            code="context_length_exceeded",
        )
    limit = room if ask.params.max_tokens is None else min(room, ask.params.max_tokens)
    return replace(ask, params=msgspec.structs.replace(ask.params, max_tokens=limit))


def _placed(error: ApiError, place: str) -> ApiError:
    if not place or error.param is None:
        return error
    said = error.message
    said = place + said if said.startswith(error.param) else f"{place}{error.param}: {said}"
    return ApiError(error.status, said, kind=error.kind, param=place + error.param, code=error.code)


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    root = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
    said = error.message
    if root in names and "_" not in root and said.startswith(root):
        said = names[root] + said[len(root) :]
    for ours, theirs in names.items():
        if "_" in ours:  # other names are words of plain English too
            said = re.sub(rf"(?<![\w.]){ours}\b", theirs, said)
    param = error.param
    if param is not None and root in names:
        param = names[root] + param[len(root) :]
        if names[root] not in said:
            said = f"{names[root]}: {said}"
    return ApiError(
        error.status, said, kind=error.kind, param=param, code=error.code, retry_after=error.retry_after
    )
