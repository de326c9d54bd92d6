"""Clients of other servers' protocols against a real model: Ollama's, and those of TGI."""

from __future__ import annotations

import json

import pytest

QUESTION = "Write one short sentence about the sea."


def test_ollama(url: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=url)
    assert [model.model for model in client.list().models] == ["smollm2"]
    shown = client.show("smollm2:latest")
    assert (shown.details.family, "tools" in shown.capabilities) == ("llama", True)
    ask = {"model": "smollm2", "options": {"num_predict": 16, "temperature": 0}}
    messages = [{"role": "user", "content": QUESTION}]
    made = client.chat(messages=messages, **ask)
    assert "".join(part.message.content for part in client.chat(messages=messages, stream=True, **ask)) == (
        made.message.content
    )
    assert (made.done_reason, made.eval_count) == ("length", 16)
    assert client.generate(prompt=QUESTION, **ask).response == made.message.content
    assert len(client.embed("smollm2", ["a", "b"]).embeddings) == 2
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}}
    schema |= {"required": ["age"], "additionalProperties": False}
    person = client.chat("smollm2", messages, format=schema, options={"temperature": 0, "num_predict": 60})
    assert set(json.loads(person.message.content)) == {"age"}
    with pytest.raises(ollama.ResponseError, match=r"options\.mirostat"):
        client.chat(messages=messages, model="smollm2", options={"mirostat": 1})
    with pytest.raises(ollama.ResponseError, match="no model"):
        client.chat("other", messages)


def test_hugging_face_inference(url: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(model=url)
    made = client.text_generation("The sea is", max_new_tokens=12, details=True)
    assert (made.details.finish_reason, len(made.details.tokens)) == ("length", 12)
    parts = list(client.text_generation("The sea is", max_new_tokens=12, details=True, stream=True))
    assert "".join(part.token.text for part in parts) == made.generated_text == parts[-1].generated_text
    assert client.text_generation("The sea is", max_new_tokens=12) == made.generated_text


def test_text_generation(url: str) -> None:
    """TGI's own client wants an older huggingface_hub than others do: in an environment of its own."""
    text_generation = pytest.importorskip("text_generation")
    client = text_generation.Client(url)
    made = client.generate("The sea is", max_new_tokens=12)
    assert made.details.generated_tokens == 12
    parts = client.generate_stream("The sea is", max_new_tokens=12)
    assert "".join(part.token.text for part in parts) == made.generated_text
    with pytest.raises(text_generation.errors.ValidationError, match="watermark"):
        client.generate("The sea is", watermark=True)
