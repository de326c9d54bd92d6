"""/v1/embeddings with the real openai package: shapes, encodings, what is refused."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from spola.server.options import ServerOptions
from support.running import Running
from support.serving import ask, serving


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Over the reference backend: its vectors depend on the text."""
    folder = tmp_path_factory.mktemp("real")
    with serving(folder, server=ServerOptions(), backend="reference") as running:
        yield running


def close(numbers: list[float]) -> Any:
    """Equal up to what the reference backend, which promises no bits, may give in another batch."""
    return pytest.approx(numbers, abs=1e-6)


@pytest.fixture(scope="module")
def client(real: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_the_client_asks_for_base64_and_gets_the_same_numbers(client: openai.OpenAI, real: Running) -> None:
    texts = ["hello", "something else", "hello"]
    told = client.embeddings.create(model="tiny", input=texts)
    assert [item.index for item in told.data] == [0, 1, 2]
    plain = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
    for a, b in zip(told.data, plain.data, strict=True):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-6)
        assert math.fsum(x * x for x in a.embedding) == pytest.approx(1, abs=1e-5)
    assert told.data[0].embedding == close(told.data[2].embedding)
    assert told.data[0].embedding != pytest.approx(told.data[1].embedding, abs=1e-3)
    assert told.usage.prompt_tokens == told.usage.total_tokens > 3
    assert len(told.data[0].embedding) == real.service.spec.hidden


def test_a_vector_does_not_depend_on_its_neighbours(client: openai.OpenAI) -> None:
    alone = client.embeddings.create(model="tiny", input="hello")
    among = client.embeddings.create(model="tiny", input=["a b c d", "hello", "x" * 60])
    assert alone.data[0].embedding == close(among.data[1].embedding)


def test_fewer_dimensions_are_the_first_ones_of_length_one(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="tiny", input="hello").data[0].embedding
    short = client.embeddings.create(model="tiny", input="hello", dimensions=4).data[0].embedding
    scale = math.sqrt(math.fsum(x * x for x in whole[:4]))
    assert short == pytest.approx([x / scale for x in whole[:4]], abs=1e-6)


def test_ids_and_pooling(real: Running) -> None:
    ids = real.service.prompt_ids("hello")
    body: dict[str, Any] = {"input": ids}
    mean = ask(real, "/v1/embeddings", body).body["data"][0]["embedding"]
    assert ask(real, "/v1/embeddings", {"input": "hello"}).body["data"][0]["embedding"] == close(mean)
    assert ask(real, "/v1/embeddings", {"input": [ids, ids]}).body["data"][1]["embedding"] == close(mean)
    last = ask(real, "/v1/embeddings", {**body, "pooling": "last"}).body["data"][0]["embedding"]
    assert last != pytest.approx(mean, abs=1e-3)
    raw = ask(real, "/v1/embeddings", {**body, "encoding_format": "base64"}).body["data"][0]["embedding"]
    decoded = array("f")
    decoded.frombytes(base64.b64decode(raw))
    assert decoded.tolist() == close(mean)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 10**6}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "model": "other"}, "model"),
        ({"input": [10**9]}, "input"),
    ],
)
def test_wrong_requests_are_named(running: Running, body: dict[str, Any], param: str) -> None:
    answer = ask(running, "/v1/embeddings", body)
    assert answer.status == (404 if param == "model" else 400)
    assert answer.body["error"]["param"] == param


def test_a_text_too_long_says_so(running: Running) -> None:
    answer = ask(running, "/v1/embeddings", {"input": ["a", [5] * 300]})
    assert (answer.status, answer.body["error"]["code"]) == (400, "context_length_exceeded")


def test_an_unknown_field_is_told(running: Running) -> None:
    answer = ask(running, "/v1/embeddings", {"input": "a", "truncate": True})
    assert answer.headers["x-spola-unknown-fields"] == "truncate"
