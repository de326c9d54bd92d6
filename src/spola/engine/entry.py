"""What a new request may become: how many tokens it can have, or why it is refused."""

from __future__ import annotations

from spola.core.errors import CapacityError, RequestError
from spola.engine.kv import KvSpace
from spola.engine.limits import Shape
from spola.engine.request import Request

__all__ = ["token_limit"]


def token_limit(request: Request, shape: Shape, kv: KvSpace) -> int:
    """Tokens that ``request`` can know at most; raises if not even its prompt can be computed."""
    known, most = len(request.known), shape.max_len
    if known == 0:
        raise RequestError("the prompt is empty", param="prompt")
    if known + (request.want == "sample") > most:
        raise RequestError(
            f"the prompt has {known} tokens; prompt and output together can have {most}",
            param="prompt",
            code="context_length_exceeded",
        )
    if request.want in ("score", "logits") and not 0 <= request.head_from < request.goal:
        raise RequestError(
            f"nothing to {'score' if request.want == 'score' else 'compute'} from position "
            f"{request.head_from} of {known} tokens",
            param="prompt",
        )
    room = kv.capacity()
    if room is not None and request.goal > room:
        size = shape.block_size
        raise CapacityError(
            f"the prompt needs {request.goal} tokens of KV cache ({kv.blocks(request.goal)} blocks "
            f"of {size}); the whole cache holds {room} ({room // size} blocks): shorten the prompt or "
            "give the cache more memory"
        )
    if shape.context is not None:
        if request.goal > shape.context:
            raise CapacityError(
                f"the prompt needs {request.goal} positions; this backend computes at most "
                f"{shape.context} in one step: shorten the prompt"
            )
        room = shape.context if room is None else min(room, shape.context)
    if request.want != "sample":
        return known
    if request.params.max_tokens is not None:
        most = min(most, known + request.params.max_tokens)
    return most if room is None else min(most, room + 1)
