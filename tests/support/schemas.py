"""Random JSON Schemas, and random answers within a grammar: seeded, the same everywhere."""

from __future__ import annotations

import random
from typing import Any

from spola.text.grammar import Grammar
from spola.text.tokenizer import Tokenizer

__all__ = ["Walker", "random_schema"]

_STRINGS: tuple[dict[str, Any], ...] = (
    {},
    {"minLength": 1, "maxLength": 8},
    {"maxLength": 40},
    {"pattern": "^[a-z]{2,5}-[0-9]+$"},
    {"pattern": "[0-9]"},
    {"format": "date"},
    {"format": "date-time"},
    {"format": "time"},
    {"format": "email"},
    {"format": "uuid"},
    {"format": "ipv4"},
    {"format": "uri"},
)
_NUMBERS: tuple[dict[str, Any], ...] = (
    {},
    {"minimum": -3, "maximum": 12},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 100},
    {"multipleOf": 5},
    {"minimum": 0},
)
# Keywords that the compiler does not take; they make a tenth of the schemas' parts.
_UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {"not": {"type": "null"}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "object", "unevaluatedProperties": False},
)


def random_schema(rng: random.Random) -> dict[str, Any]:
    """An object schema as applications write them: nested, with references, unions and bounds."""
    schema = _object(rng, 3)
    if rng.random() < 0.4:
        schema["$defs"] = {"node": _value(rng, 1)}
        schema["properties"]["ref"] = {"$ref": "#/$defs/node"}
    if rng.random() < 0.2:
        schema["properties"]["children"] = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    return schema


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(
        ["name", "age", "a", "b c", "città", "x/y", "名", 'q"', "id", "tags"], rng.randint(0, 4)
    )
    schema: dict[str, Any] = {"type": "object", "properties": {n: _value(rng, depth - 1) for n in names}}
    if names and rng.random() < 0.8:
        schema["required"] = rng.sample(names, rng.randint(1, len(names)))
    if rng.random() < 0.7:
        schema["additionalProperties"] = False
    elif rng.random() < 0.3:
        schema["additionalProperties"] = {"type": "integer"}
    return schema


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.025:
        return dict(rng.choice(_UNSUPPORTED))
    kinds = ["string", "string", "integer", "number", "boolean", "null", "enum", "const", "any of", "types"]
    if depth > 0:
        kinds += ["object", "array", "array", "tuple", "all of"]
    match rng.choice(kinds):
        case "string":
            return {"type": "string", **rng.choice(_STRINGS)}
        case "integer":
            return {"type": "integer", **rng.choice(_NUMBERS)}
        case "number":
            return {"type": "number", **rng.choice(_NUMBERS)}
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": "null"}
        case "enum":
            return {"enum": rng.sample(["开心", "Sjöfart", 'a"b\\c', "😸", "\n", 1, 2.5, None, True, [1]], 3)}
        case "const":
            return {"const": rng.choice(["x", 7, None, {"k": [1, "é"]}])}
        case "any of":
            return {"anyOf": [_value(rng, depth - 1), {"type": "null"}]}
        case "types":
            return {"type": ["string", "integer"], "maxLength": 5, "maximum": 9}
        case "array":
            return {"type": "array", "items": _value(rng, depth - 1), "minItems": 1, "maxItems": 3}
        case "tuple":
            first = [_value(rng, depth - 1), {"type": "integer"}]
            return {"type": "array", "prefixItems": first, "items": False, "minItems": 2}
        case "all of":
            return {
                "allOf": [{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}]
            }
    return _object(rng, depth)


class Walker:
    """Draws answers from a grammar without a model, leaning towards short ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends = tokenizer.eos_ids
        n = tokenizer.vocab_size
        texts = [tokenizer.token_bytes(i) for i in range(n)]
        self._closing = sum(
            1 << i for i, text in enumerate(texts) if text in (b'"', b"}", b"]", b'"}', b"]}")
        )
        self._ending = sum(1 << i for i in self._ends)
        self._words = 4 * ((n + 31) // 32)

    def draw(self, grammar: Grammar, rng: random.Random, most: int = 300) -> str | None:
        """An answer that the grammar calls complete; None when ``most`` tokens do not get there."""
        guard = grammar.guard()
        ids: list[int] = []
        for _ in range(most):
            buffer = bytearray(self._words)
            assert guard.mask(memoryview(buffer).cast("I"))
            bits = int.from_bytes(buffer, "little")
            assert bits, "nothing is allowed and nothing has ended"
            token = self._pick(bits, rng)
            kept = guard.accept((token,))
            if kept is not None:
                ids += [token][:kept]
                return self._tokenizer.decode(ids)
            ids.append(token)
        return None

    def _pick(self, bits: int, rng: random.Random) -> int:
        for some, chance in ((self._ending, 0.5), (self._closing, 0.4)):
            if bits & some and rng.random() < chance:
                bits &= some
        chosen = rng.randrange(bits.bit_count())
        for _ in range(min(chosen, 500)):
            bits &= bits - 1
        if chosen > 500:  # far into a large set: from the other end is as random
            return bits.bit_length() - 1
        return (bits & -bits).bit_length() - 1
