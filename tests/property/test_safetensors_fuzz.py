"""Whatever bytes the safetensors reader gets, it reads them soundly or refuses them with a ModelError."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.formats.output import NewTensor
from spola.formats.safetensors import open_safetensors, write_safetensors
from support.gguf_mutate import mutate, rewrite


@pytest.fixture
def seed(tmp_path: Path) -> bytes:
    path = tmp_path / "seed.safetensors"
    shapes = {"a": ("F32", (2, 3)), "b": ("F16", (5,)), "c": ("BF16", (1, 1, 4)), "d": ("F32", ())}
    sizes = {"F32": 4, "F16": 2, "BF16": 2}
    counts = {"a": 6, "b": 5, "c": 4, "d": 1}
    tensors = [
        NewTensor(name, BY_NAME[kind], shape, bytes(counts[name] * sizes[kind]))
        for name, (kind, shape) in shapes.items()
    ]
    write_safetensors(path, tensors, {"format": "pt"})
    return path.read_bytes()


def _digits(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one digit replaced: numbers of the header stay numbers."""
    places = [at for at, byte in enumerate(data) if 48 <= byte < 58]
    changed = bytearray(data)
    changed[rng.choice(places)] = rng.choice(b"0123456789")
    return bytes(changed)


def _read(path: Path) -> bool:
    """Whether ``path`` is accepted; reads all of it then, and checks that it is sound."""
    try:
        model = open_safetensors(path)
    except ModelError:
        return False
    with model:
        size = path.stat().st_size
        spans = sorted((entry.offset, entry.offset + entry.nbytes) for entry in model.tensors.values())
        assert all(8 < start <= end <= size for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        for name, entry in model.tensors.items():
            assert len(model.read(name)) == entry.nbytes
    return True


def test_mutated_files_are_sound_or_refused(tmp_path: Path, seed: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    rng = random.Random(8)
    read = 0
    for index in range(4000):
        rewrite(path, mutate(seed, rng) if index % 2 else _digits(seed, rng))
        read += _read(path)
    # Both outcomes must be common, or the mutations test nothing.
    assert 100 < read < 3900
