"""``tokenizer.model``: the same tokenizer as from the GGUF keys, and refusals of anything malformed."""

from __future__ import annotations

from typing import Any

import pytest

from spola.core.errors import ModelError
from spola.text.spm_file import gguf_keys_of
from spola.text.tokenizer import Tokenizer
from support.sentencepiece import PIECES, field
from support.sentencepiece import sentencepiece_model as model


def test_the_same_as_from_gguf() -> None:
    tokens, scores, types = (list(column) for column in zip(*PIECES, strict=True))
    keys = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types, "unknown_token_id": 0}
    keys |= {"bos_token_id": 1, "eos_token_id": 2}
    wanted = Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    found = Tokenizer.from_gguf(gguf_keys_of(model(), {}), (7,))
    for text in ("ab ab é", "  c", "x€", "<s>a"):
        assert found.encode(text) == wanted.encode(text)
        assert found.decode(found.encode(text)) == text
    assert found.eos_ids == {2, 7}


def test_added_tokens() -> None:
    n = len(PIECES)
    added = {str(n): {"content": "<|x|>", "special": True}, "2": {"content": "</s>", "special": True}}
    added[str(n + 1)] = {"content": "<y>", "special": False}
    tokenizer = Tokenizer.from_gguf(
        gguf_keys_of(model(), {"added_tokens_decoder": added, "add_bos_token": False})
    )
    assert tokenizer.encode("<y>c<|x|>", parse_special=True)[0] == n + 1
    assert tokenizer.encode("<|x|>", parse_special=True) == [n]
    assert n not in tokenizer.encode("<|x|>")


@pytest.mark.parametrize(
    ("data", "config", "message"),
    [
        (b"", {}, "is no SentencePiece model of kind"),
        (model(3), {}, "is no SentencePiece model of kind"),
        (model()[:-3], {}, "cut short"),
        (b"\xff" * 20, {}, "cut short"),
        (b"{}", {}, "cut short"),
        (field(1, 5), {}, "cut short"),
        (model(charsmap=b"abcd"), {}, "a BPE with a normalizer of its own"),
        (model(pieces=[("a", 0.0, 9)]), {}, "piece 0 is not valid"),
        (field(1, field(1, b"\xff")), {}, "cut short"),
        (model(), {"added_tokens_decoder": {"9999": {"content": "x"}}}, "added token 9999 leaves a gap"),
        (model(), {"added_tokens_decoder": {"x": {}}}, "must map token ids to objects"),
        (model(), {"added_tokens_decoder": [1]}, "must be an object"),
    ],
)
def test_refusals(data: bytes, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        gguf_keys_of(data, config)


def test_every_cut_is_refused_or_shorter() -> None:
    whole = model()
    for cut in range(0, len(whole), 7):
        try:
            keys = gguf_keys_of(whole[:cut], {})
        except ModelError:
            continue
        assert len(keys["tokenizer.ggml.tokens"]) <= len(PIECES)
