"""What files of tests share: a tiny model, its tokenizer, grammars over it, and a hub that has the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from spola.load import transfer
from spola.text.grammar import Grammars
from spola.text.tokenizer import Tokenizer
from support.fake_hub import FakeHub, fake_hub
from support.pulling import REPOSITORY, places
from support.tiny import Tiny, write_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(Tiny().metadata())


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


@pytest.fixture(scope="module")
def hub_server() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny model as the bytes of a file."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, Tiny())
    return path.read_bytes()


@pytest.fixture
def hub(hub_server: FakeHub, tiny_gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The hub with one repository, a home without models, and no waiting between attempts."""
    hub_server.reset()
    hub_server.repositories[REPOSITORY] = {
        "README.md": b"hello",
        "tiny-Q4_K_M.gguf": tiny_gguf,
        "tiny-Q8_0.gguf": tiny_gguf + bytes(32),
        "mmproj-tiny.gguf": b"projector",
    }
    for name, value in places(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(transfer, "WAIT_S", 0.0)
    return hub_server
