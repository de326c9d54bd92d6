"""Messages to ids, so that what people write can never pose as the structure of the conversation.

The chat template's own text is read with its special tokens; the same texts inside a message are just text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spola.text.chat import ChatTemplate
from spola.text.messages import normalise_messages
from spola.text.tokenizer import Tokenizer
from spola.text.vocab import CONTROL, UNKNOWN

__all__ = ["encode_chat"]

# Code points that Unicode keeps out of texts; one that no message uses becomes the mark.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Mapping[str, Any]]
) -> list[int]:
    """The ids of a conversation, ready for the assistant's answer. Raises RequestError naming the field."""
    plain = normalise_messages(messages, keep_developer=True)
    mark = next((c for c in _NONCHARACTERS if not any(c in message["content"] for message in plain)), "")
    if mark:
        controls = _control_texts(tokenizer)
        for message in plain:
            message["content"] = _break_controls(message["content"], controls, mark)
    rendered = template.render(plain)
    # An end of text between the question and the answer would be nonsense, whatever the file says.
    return tokenizer.encode(rendered, add_eos=False, parse_special=True, drop=mark)


def _break_controls(text: str, controls: Sequence[str], mark: str) -> str:
    """``text`` with the mark inside every control token's text, so that none is found there."""
    for control in controls:
        if control in text:
            text = text.replace(control, control[0] + mark + control[1:])
    return text


def _control_texts(tokenizer: Tokenizer) -> list[str]:
    vocab = tokenizer.vocab
    types = vocab.types
    return [text for text, token in vocab.ids.items() if types[token] in (CONTROL, UNKNOWN) and len(text) > 1]
