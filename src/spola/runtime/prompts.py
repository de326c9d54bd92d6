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
) -> list[int]:
    """The ids of a conversation, ready for the assistant's answer. Raises RequestError naming the field.

    ``check_length`` sees the rendered text before it is tokenized, and raises if it is too long.
    """
    plain = normalise_messages(messages, keep_developer=True)
    mark = next((c for c in _NONCHARACTERS if not any(c in message["content"] for message in plain)), "")
    if mark:
        for message in plain:
            message["content"] = tokenizer.break_special(message["content"], mark)
    rendered = template.render(plain)
    check_length(rendered)
    # An end of text between the question and the answer would be nonsense, whatever the file says.
    return tokenizer.encode(rendered, add_eos=False, parse_special=True, drop=mark)


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
