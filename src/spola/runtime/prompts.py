"""Messages to ids, so that what people write can never pose as the structure of the conversation.

The chat template's own text is read with its special tokens; the same texts inside a message are just text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spola.text.chat import ChatTemplate
from spola.text.messages import normalise_messages
from spola.text.tokenizer import Tokenizer

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
        for message in plain:
            message["content"] = tokenizer.break_special(message["content"], mark)
    rendered = template.render(plain)
    # An end of text between the question and the answer would be nonsense, whatever the file says.
    return tokenizer.encode(rendered, add_eos=False, parse_special=True, drop=mark)
