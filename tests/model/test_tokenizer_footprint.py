"""What a tokenizer is counted to take is what it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.load.resolve import embedded_model
from spola.text.footprint import _dict_bytes, tokenizer_bytes

BUILD = """
import gc, sys
from spola import _native
from spola.formats.gguf import open_gguf
from spola.runtime.memory import resident
from spola.text.tokenizer import Tokenizer

def build(length):
    with open_gguf(sys.argv[1]) as file:
        metadata = file.metadata
    del file
    for key in ("tokens", "token_type"):
        metadata["tokenizer.ggml." + key] = metadata["tokenizer.ggml." + key][:length]
    kept = set(metadata["tokenizer.ggml.tokens"])
    merges = metadata["tokenizer.ggml.merges"]
    metadata["tokenizer.ggml.merges"] = [m for m in merges if m.replace(" ", "") in kept][:length]
    tokenizer = Tokenizer.from_gguf(metadata)
    tokenizer.encode("Some text, so that the code of the library is there too.")
    return tokenizer

def settled():
    gc.collect()
    _native.trim_heap()
    return resident()

small = build(2000)
before = settled()
large = build(1 << 20)
print(large.vocab_size, settled() - before)
"""


@pytest.mark.parametrize("entries", [5, 6, 2000, 43_690, 43_691, 49_152, 100_000])
def test_a_dict_of_strings(entries: int) -> None:
    assert sys.getsizeof({str(i): i for i in range(entries)}) - _dict_bytes(entries) in range(150)


def test_the_embedded_model() -> None:
    path = embedded_model()
    if path is None:
        pytest.skip("smollm2 is not here")
    command = [sys.executable, "-c", BUILD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tokens, taken = map(int, done.stdout.split())
    assert tokens == 49152
    assert 0.7 < taken / tokenizer_bytes(tokens) < 1.4, taken
