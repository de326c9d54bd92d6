"""Prompts: the forms in which scripts give them, and messages to ids.

What people write can never pose as the structure of a conversation: the chat template's own text is read with
its special tokens; the same texts inside a message are just text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spola.core.errors import RequestError
from spola.text.chat import ChatTemplate
from spola.text.messages import normalise_messages
from spola.text.tokenizer import Tokenizer

__all__ = ["bad_sequences", "encode_chat", "listed_prompts", "parse_prompt"]

# Code points that Unicode keeps out of texts; one that no message uses becomes the mark.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    check_length: Callable[[str], None],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
    open_turn: bool = True,
    continue_final: bool = False,
) -> tuple[list[int], str]:
    """The ids of a conversation and its text, ready for the assistant's answer.

    ``open_turn``: the text ends with the beginning of the assistant's turn; ``continue_final``: it ends
    inside the last message, which the answer goes on with. ``check_length`` sees the rendered text before
    it is tokenized, and raises if it is too long. Raises RequestError naming the field.
    """
    plain = normalise_messages(messages, keep_developer=True)
    shown: Any = list(tools)
    mark = next((c for c in _NONCHARACTERS if not _holds(plain, c) and not _holds(shown, c)), "")
    if mark:
        plain = _broken(tokenizer, plain, mark)
        shown = _broken(tokenizer, shown, mark)
    rendered = template.render(
        plain,
        tools=shown,
        add_generation_prompt=open_turn and not continue_final,
        **(variables or {}),
    )
    if continue_final:
        rendered = _open_ended(plain, rendered)
    check_length(rendered)
    # An end of text between the question and the answer would be nonsense, whatever the file says.
    ids = tokenizer.encode(rendered, add_eos=False, parse_special=True, drop=mark)
    return ids, rendered.replace(mark, "") if mark else rendered


def _holds(value: Any, char: str) -> bool:
    """Whether a text anywhere in ``value`` has ``char``."""
    if isinstance(value, str):
        return char in value
    if isinstance(value, Mapping):
        return any(_holds(key, char) or _holds(item, char) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(_holds(item, char) for item in value)


def _broken(tokenizer: Tokenizer, value: Any, mark: str) -> Any:
    """``value`` with every text in it such that no control token is read there."""
    if isinstance(value, str):
        return tokenizer.break_special(value, mark)
    if isinstance(value, Mapping):
        return {_broken(tokenizer, key, mark): _broken(tokenizer, item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_broken(tokenizer, item, mark) for item in value]
    return value


def _open_ended(messages: Sequence[Mapping[str, Any]], rendered: str) -> str:
    """``rendered`` up to the end of the last message's content, as ``transformers`` cuts it."""
    final = messages[-1]
    content = final["content"]
    if final["role"] != "assistant" or not content.strip():
        raise RequestError(
            "continue_final_message needs an assistant's message with content as the last",
            param="continue_final_message",
        )
    at = rendered.rfind(content.strip())
    if at < 0:
        raise RequestError(
            "continue_final_message: the chat template does not show the last message as it is",
            param="continue_final_message",
        )
    whole = content.lstrip()
    return rendered[: at + len(whole if rendered.startswith(whole, at) else content.strip())]


def listed_prompts(prompts: str | Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
    """One prompt or several -> several. A flat list of numbers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts must be text, ids or a list of them, not {prompts!r:.60}", param="prompts"
        )
    if not prompts:
        return []
    return [prompts] if isinstance(prompts[0], int) else prompts


def parse_prompt(prompt: Any) -> tuple[str | None, Sequence[int]]:
    """One prompt in any of vLLM's forms -> (text, ()) or (None, ids). Raises RequestError."""
    if isinstance(prompt, Mapping):
        extra = set(prompt) - {"prompt", "prompt_token_ids"}
        if extra or len(prompt) != 1:
            raise RequestError(
                f"a prompt dict has either prompt or prompt_token_ids, not {sorted(map(str, prompt))}",
                param="prompts",
            )
        prompt = next(iter(prompt.values()))
    if isinstance(prompt, str):
        return prompt, ()
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        return None, prompt
    raise RequestError(f"a prompt must be text or a list of token ids, not {prompt!r:.60}", param="prompts")


def bad_sequences(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The ids of every one of ``words``, as it is at the start of a text and as it is after a space.

    Raises RequestError for one that no token can write.
    """
    out: list[list[int]] = []
    for word in words:
        bare = word.strip()
        spelled = [tokenizer.encode(text, add_bos=False, add_eos=False) for text in (bare, " " + bare)]
        if not all(spelled):
            raise RequestError(f"bad_words: no token can write {word!r}", param="bad_words")
        out += [ids for ids in spelled if ids not in out]
    return out
