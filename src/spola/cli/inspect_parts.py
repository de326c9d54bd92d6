"""The sections of ``spola inspect`` that GGUF files and folders have in common, as plain data."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spola.core.errors import SpolaError
from spola.formats.tensors import TensorSource
from spola.spec.cost import kv_bytes_per_token
from spola.spec.decoder import DecoderSpec
from spola.spec.kv import kv_groups
from spola.text.chat import ChatTemplate
from spola.text.tokenizer import Tokenizer

__all__ = ["answering", "attempt", "model_of", "tensor_list", "tensors_of", "tokenizer_of"]


def attempt(look: Callable[[], Any], unusual: list[str], what: str) -> Any:
    """One section, or None and the reason among what is unusual."""
    try:
        return look()
    except SpolaError as error:
        unusual.append(f"{what}: {error}")
        return None


def tensors_of(file: TensorSource) -> dict[str, Any]:
    table: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "bytes": 0, "elements": 0})
    for entry in file.tensors.values():
        row = table[entry.dtype.name]
        row["count"] += 1
        row["bytes"] += entry.nbytes
        row["elements"] += entry.elements
    rows = dict(sorted(table.items(), key=lambda item: -item[1]["bytes"]))
    return {
        "tensors": len(file.tensors) + len(file.unsupported),
        "parameters": sum(row["elements"] for row in rows.values()),
        "weights_bytes": sum(row["bytes"] for row in rows.values()),
        "types": rows,
    }


def tensor_list(file: TensorSource) -> list[dict[str, Any]]:
    rows = [
        {"name": e.name, "type": e.dtype.name, "shape": list(e.shape), "bytes": e.nbytes}
        for e in file.tensors.values()
    ]
    return rows + [
        {"name": e.name, "type": e.type_name, "shape": list(e.shape), "bytes": None}
        for e in file.unsupported.values()
    ]


def model_of(spec: DecoderSpec) -> dict[str, Any]:
    return {
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "context": spec.context,
        "kv_bytes_per_token": kv_bytes_per_token(kv_groups(spec)),
        "first_layer": _short(spec.layers[0]),
    }


def _short(part: Any) -> str:
    """A part of a spec as it would be written, without the fields that have their default."""
    if not dataclasses.is_dataclass(part):
        return f"{part:.6g}" if isinstance(part, float) else repr(part)
    shown = [
        f"{field.name}={_short(getattr(part, field.name))}"
        for field in dataclasses.fields(part)
        if field.default is dataclasses.MISSING or getattr(part, field.name) != field.default
    ]
    return f"{type(part).__name__}({', '.join(shown)})"


def tokenizer_of(tokenizer: Tokenizer, pre: str | None) -> dict[str, Any]:
    def token(number: int | None) -> dict[str, Any] | None:
        return None if number is None else {"id": number, "text": tokenizer.token_text(number)}

    vocab = tokenizer.vocab
    return {
        "model": vocab.model,
        "pre": pre,
        "size": tokenizer.vocab_size,
        "bos": token(tokenizer.bos_id),
        "eos": token(tokenizer.eos_id),
        "add_bos": vocab.add_bos,
        "add_eos": vocab.add_eos,
        "ends": [token(number) for number in sorted(tokenizer.eos_ids)],
    }


def answering(
    file: TensorSource,
    template: Callable[[], str | None],
    defaults: tuple[Mapping[str, Any], Sequence[str]],
    unusual: list[str],
) -> dict[str, Any]:
    """What shapes an answer, and, as the last section, all that is unusual; ``defaults`` with warnings."""
    chat = attempt(lambda: _chat(template()), unusual, "chat template")
    sampling, warnings = defaults
    unusual += warnings
    unusual += [f"tensor {t.name} has type {t.type_name}" for t in file.unsupported.values()][:8]
    if not chat:
        unusual.append("there is no usable chat template: use --raw or --chat-template FILE")
    return {"chat_template": chat, "sampling_defaults": sampling, "unusual": unusual}


def _chat(source: str | None) -> dict[str, Any] | None:
    if source is None:
        return None
    ChatTemplate(source)
    return {"characters": len(source), "mentions_tools": "tools" in source}
