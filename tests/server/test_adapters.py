"""Adapters over HTTP: listed beside the model, chosen by its name field."""

from __future__ import annotations

from pathlib import Path

from support.adapters import tiny_factors, write_adapter
from support.serving import ask, serving
from support.tiny import Tiny


def test_the_name_of_an_adapter_chooses_it(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_adapter(tmp_path / name, tiny_factors(Tiny(), seed))
    lora = tuple((name, str(tmp_path / name)) for name in "ab")
    body = {"prompt": "the rain", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with serving(tmp_path, backend="native", lora=lora, kv_memory=8 << 20) as running:
        listed = ask(running, "/v1/models").body["data"]
        assert [(row["id"], row["parent"]) for row in listed] == [
            ("tiny", None),
            ("a", "tiny"),
            ("b", "tiny"),
        ]
        assert ask(running, "/v1/models/b").body["root"] == "tiny"
        texts, vectors = {}, {}
        for name in ("tiny", "a", "b"):
            reply = ask(running, "/v1/completions", {**body, "model": name}).body
            assert reply["model"] == name
            texts[name] = reply["choices"][0]["text"]
            embedded = ask(running, "/v1/embeddings", {"input": "the rain", "model": name}).body
            vectors[name] = str(embedded["data"])
        assert len(set(texts.values())) == 3
        assert len(set(vectors.values())) == 3
        assert ask(running, "/v1/completions", body).body["choices"][0]["text"] == texts["tiny"]
        unknown = ask(running, "/v1/completions", {**body, "model": "c"})
        assert unknown.status == 404
        assert "'a', 'b'" in unknown.body["error"]["message"]
