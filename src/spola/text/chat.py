"""Chat templates: messages to one prompt string, as the model's authors wrote it down.

``ChatTemplate`` renders with the names and rules of the ``transformers`` library, in a sandbox with bounded
cost (``text.sandbox``). What a message may look like is ``text.messages``. Nothing is tokenized here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from spola.core.errors import ModelError, RequestError
from spola.text.budget import Budget, LimitError, spending
from spola.text.messages import normalise_messages
from spola.text.sandbox import Sandbox

__all__ = ["ChatTemplate", "find_template", "no_template"]

_KEY = "tokenizer.chat_template"
_DATE_WIDTH = re.compile(r"%[^a-zA-Z%]*[0-9]")


def find_template(metadata: Mapping[str, Any], *, tools: bool = False) -> str | None:
    """The template's source in GGUF ``metadata``: the default, or the one for tools, where there is one.

    Raises ModelError when the key holds anything but a string.
    """
    key = f"{_KEY}.tool_use" if tools else _KEY
    source = metadata.get(key)
    if source is not None and not isinstance(source, str):
        raise ModelError(f"{key} must be a string, not {type(source).__name__}")
    return source or None


def no_template() -> RequestError:
    """The error for a chat with a model that has no template."""
    return RequestError(
        "this model has no chat template: use /v1/completions (spola run --raw), "
        "or start with --chat-template FILE",
        code="no_chat_template",
    )


class ChatTemplate:
    """One compiled template. Threads may share it; a rendering keeps no state.

    ``bos`` and ``eos`` are the texts of those tokens (empty if the model has none). ``clock`` is what
    ``strftime_now`` reads. ``with_tools`` is the template for requests with tools: this one, unless the model
    brings another. Raises ModelError with the line when the source is no valid template.
    """

    def __init__(
        self,
        source: str,
        bos: str = "",
        eos: str = "",
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.with_tools = self
        self._names = {"bos_token": bos, "eos_token": eos}
        self._knows_developer = "developer" in source
        environment = Sandbox()
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime(clock)}
        try:
            self._template = environment.compile_template(source)
        except TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from None
        except LimitError as error:
            raise ModelError(f"chat template refused: {error}") from None
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            # What Python's own compiler says of absurd sources, as too many nested blocks.
            raise ModelError(f"chat template cannot be compiled: {_one_line(error)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt. ``variables`` are further names that the template may read (enable_thinking, …).

        Raises RequestError: with the template's own words when it refuses the messages, with the field when
        a message is malformed, with the reason when the template fails or costs too much.
        """
        plain = normalise_messages(messages, keep_developer=self._knows_developer)
        names: dict[str, Any] = {
            **self._names,
            **variables,
            "messages": plain,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with spending(Budget(names)) as budget:
                parts, chars = [], 0
                for part in self._template.generate(names):
                    parts.append(part)
                    chars += len(part)
                    budget.size(chars)
                return "".join(parts)
        except RequestError:
            raise
        except (LimitError, RecursionError, MemoryError) as error:
            reason = (
                _one_line(error)
                if isinstance(error, LimitError)
                else "it recurses too deep or grows too large"
            )
            raise RequestError(f"the chat template was stopped: {reason}", param="messages") from None
        except Exception as error:
            # A template is a program; whatever it raises is this request's failure, never the server's.
            raise RequestError(f"the chat template failed: {_one_line(error)}", param="messages") from None


def _raise_exception(message: Any = "") -> None:
    raise RequestError(f"the chat template refused the messages: {str(message)[:1000]}", param="messages")


def _strftime(clock: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if len(form) > 256 or _DATE_WIDTH.search(form):
            raise TemplateError("strftime_now() takes a short format without widths")
        return clock().strftime(form)

    return strftime_now


def _one_line(error: BaseException) -> str:
    return " ".join(f"{error or type(error).__name__}".split())[:500]
