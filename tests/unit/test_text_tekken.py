"""``tekken.json``: ids and bytes as `mistral-common` gives them, folders that have it, malformed files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spola.core.errors import ModelError
from spola.load.hf_folder import open_hf_tokenizer, tokenizer_files
from spola.text.hf import build_tokenizer
from spola.text.tekken import tekken_config, tokenizer_json_of
from spola.text.to_gguf import gguf_tokenizer
from spola.text.tokenizer import Tokenizer

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tekken"
FILE: dict[str, Any] = json.loads((FOLDER / "tekken.json").read_text())
EXPECTED: dict[str, Any] = json.loads((FOLDER / "ids.json").read_text())


def file_of(version: str) -> dict[str, Any]:
    """The stored file, or one of an old version, which says nothing of special tokens."""
    data = copy.deepcopy(FILE)
    if version == "v3":
        data["config"]["version"] = "v3"
        del data["special_tokens"]
    return data


def built(data: dict[str, Any]) -> Tokenizer:
    return build_tokenizer(tokenizer_json_of(data), tekken_config({}))


@pytest.mark.parametrize("version", ["v3", "v11"])
def test_ids_and_bytes_are_those_of_mistral_common(version: str) -> None:
    want, tokenizer = EXPECTED[version], built(file_of(version))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (want["bos"], want["eos"])
    assert want["eos"] in tokenizer.eos_ids
    assert [tokenizer.token_bytes(i).hex() for i in range(tokenizer.vocab_size)] == want["bytes"]
    n = len(want["special"])
    assert [tokenizer.token_text(i) for i in range(n)] == want["special"]
    assert [tokenizer.is_special(i) for i in range(n + 300)] == [True] * n + [False] * 300
    for text, ids in zip(EXPECTED["texts"], want["ids"], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode(EXPECTED["texts"][0]) == want["with_bos"]


def test_a_special_token_is_one_only_where_it_is_asked_for() -> None:
    tokenizer = built(file_of("v11"))
    assert tokenizer.encode("[INST]", add_bos=False, parse_special=True) == [3]
    assert 3 not in tokenizer.encode("[INST]", add_bos=False)


def test_a_folder_that_has_only_this_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "eos_token_id": 2}))
    (tmp_path / "tekken.json").write_text(json.dumps(FILE))
    tokenizer = open_hf_tokenizer(tmp_path)
    for text, ids in zip(EXPECTED["texts"], EXPECTED["v11"]["ids"], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids
    # And on into a GGUF file, whose pre-tokenizer of that name is found.
    keys = gguf_tokenizer(tokenizer, *tokenizer_files(tmp_path), tokenizer.vocab_size)
    assert keys["tokenizer.ggml.pre"] == "tekken"
    again = Tokenizer.from_gguf(keys)
    for text, ids in zip(EXPECTED["texts"], EXPECTED["v11"]["ids"], strict=True):
        assert again.encode(text, add_bos=False) == ids


def change(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return apply


MALFORMED = [
    (change("config", value=None), "config is missing"),
    (change("config", "version", value="v99"), "config.version 'v99' is not known; known are: v3, "),
    (change("config", "version", value=["v3"]), "config.version .* is not known"),
    (change("config", "pattern", value=""), "config.pattern is missing"),
    (change("config", "pattern", value="("), "tokenizer.json: "),
    (change("config", "default_vocab_size", value=-1), "default_vocab_size must be an integer"),
    (change("config", "default_vocab_size", value=True), "default_vocab_size must be an integer"),
    (change("config", "default_vocab_size", value=100), "at least 256 tokens"),
    (change("config", "default_vocab_size", value=100_000), "vocab must be a list of at least 99968 tokens"),
    (change("config", "default_num_special_tokens", value=3), "special_tokens must be a list of at most 3"),
    (change("special_tokens", value=None), "special_tokens is missing, which version v11 must have"),
    (change("special_tokens", 1, value="<s>"), r"special_tokens\[1\] must have rank 1"),
    (change("special_tokens", 1, "rank", value=7), r"special_tokens\[1\] must have rank 1"),
    (change("special_tokens", 1, "token_str", value="<unk>"), "holds a text twice"),
    (change("special_tokens", 1, "token_str", value="<bos>"), "bos_token '<s>' is no token"),
    (change("vocab", value={}), "vocab must be a list"),
    (change("vocab", 300, value=[]), r"vocab\[300\] must have rank 300"),
    (change("vocab", 300, "rank", value=301), r"vocab\[300\] must have rank 300"),
    (change("vocab", 300, "token_bytes", value="*"), r"vocab\[300\].token_bytes is no base64"),
    (change("vocab", 300, "token_bytes", value="é"), r"vocab\[300\].token_bytes is no base64"),
    (change("vocab", 300, "token_bytes", value=""), r"vocab\[300\] is empty"),
    (change("vocab", 300, "token_bytes", value="AA=="), r"vocab\[300\] is empty, there twice"),
    (change("vocab", 65, "token_bytes", value="QkI="), r"vocab\[65\] is empty, there twice, or not byte 65"),
]


@pytest.mark.parametrize(("apply", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_files_are_refused(apply: Callable[[dict[str, Any]], None], message: str) -> None:
    data = copy.deepcopy(FILE)
    apply(data)
    with pytest.raises(ModelError, match=message) as caught:
        built(data)
    assert "\n" not in str(caught.value)
