"""GGUF files written by spola and read by spola and by the gguf package, and the other way round."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.formats.gguf import FieldType, ValueType, open_gguf
from spola.formats.gguf_write import NewTensor, infer_type, write_gguf

V = ValueType
METADATA: dict[str, tuple[Any, FieldType]] = {
    "general.architecture": ("llama", FieldType(V.STRING)),
    "t.u8": (255, FieldType(V.UINT8)),
    "t.i8": (-128, FieldType(V.INT8)),
    "t.u16": (65535, FieldType(V.UINT16)),
    "t.i16": (-32768, FieldType(V.INT16)),
    "t.u32": (2**32 - 1, FieldType(V.UINT32)),
    "t.i32": (-(2**31), FieldType(V.INT32)),
    "t.f32": (0.15625, FieldType(V.FLOAT32)),
    "t.true": (True, FieldType(V.BOOL)),
    "t.false": (False, FieldType(V.BOOL)),
    "t.string": ("", FieldType(V.STRING)),
    "t.unicode": ("naïve 🐚\n", FieldType(V.STRING)),
    "t.u64": (2**64 - 1, FieldType(V.UINT64)),
    "t.i64": (-(2**63), FieldType(V.INT64)),
    "t.f64": (0.1, FieldType(V.FLOAT64)),
    "t.strings": (["a", "", "Ġthe", "日本"], FieldType(V.ARRAY, FieldType(V.STRING))),
    "t.floats": ([0.5, -2.0], FieldType(V.ARRAY, FieldType(V.FLOAT32))),
    "t.ints": ([-1, 0, 7], FieldType(V.ARRAY, FieldType(V.INT32))),
    "t.bools": ([True, False, True], FieldType(V.ARRAY, FieldType(V.BOOL))),
    "t.bytes": ([0, 200, 255], FieldType(V.ARRAY, FieldType(V.UINT8))),
    "t.longs": ([2**40, -5], FieldType(V.ARRAY, FieldType(V.INT64))),
    "t.empty": ([], FieldType(V.ARRAY, FieldType(V.FLOAT64))),
}
NESTED = ([[1, 2], [], [3]], FieldType(V.ARRAY, FieldType(V.ARRAY, FieldType(V.UINT16))))


def _tensors(seed: int = 1) -> list[NewTensor]:
    rng = random.Random(seed)
    shapes = {
        "F32": (3, 5),
        "F16": (2, 3, 7),
        "BF16": (9,),
        "Q8_0": (4, 64),
        "Q4_K": (2, 512),
        "MXFP4": (1, 32),
    }
    tensors = []
    for name, shape in shapes.items():
        empty = NewTensor(f"w.{name}", BY_NAME[name], shape, b"")
        tensors.append(NewTensor(empty.name, empty.dtype, shape, rng.randbytes(empty.nbytes)))
    return tensors


def _write(path: Path, tensors: list[NewTensor], **extra: tuple[Any, FieldType]) -> None:
    fields = METADATA | extra
    values = {key: value for key, (value, _) in fields.items()}
    write_gguf(path, values, tensors, types={key: kind for key, (_, kind) in fields.items()})


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_everything_comes_back(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.gguf"
    extra = {"t.nested": NESTED, "general.alignment": (alignment, FieldType(V.UINT32))}
    _write(path, _tensors(), **extra)
    with open_gguf(path) as model:
        assert model.metadata == {key: value for key, (value, _) in (METADATA | extra).items()}
        assert model.types == {key: kind for key, (_, kind) in (METADATA | extra).items()}
        assert (model.version, model.alignment, model.paths) == (3, alignment, (path,))
        assert list(model.tensors) == [t.name for t in _tensors()]
        for tensor in _tensors():
            entry = model.tensors[tensor.name]
            assert (entry.dtype, entry.shape, entry.nbytes) == (tensor.dtype, tensor.shape, tensor.nbytes)
            assert entry.offset % alignment == 0
            assert model.read(tensor.name) == tensor.data


def test_types_are_exact_not_only_equal(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, [])
    with open_gguf(path) as model:
        for key, (value, _) in METADATA.items():
            assert type(model.metadata[key]) is type(value), key


def test_gguf_package_reads_what_spola_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = _tensors()
    _write(path, tensors)
    reader = gguf.GGUFReader(path)
    for key, (value, _) in METADATA.items():
        if value != []:
            assert reader.fields[key].contents() == value, key
    assert [t.name for t in reader.tensors] == [t.name for t in tensors]
    for theirs, ours in zip(reader.tensors, tensors):
        assert tuple(int(dim) for dim in reversed(theirs.shape)) == ours.shape
        assert theirs.tensor_type.value == ours.dtype.gguf_id
        assert theirs.data.tobytes() == ours.data


def test_spola_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_block_count(7)
    writer.add_token_list(["a", b"\xff\xfe", "c"])
    writer.add_token_scores([0.0, -1.5, 2.0])
    writer.add_key_value("one.double", 0.1, gguf.GGUFValueType.FLOAT64)
    weights = np.arange(6 * 64, dtype=np.float32).reshape(6, 64)
    packed = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("a.weight", weights)
    writer.add_tensor("b.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        assert model.alignment == 64
        assert model.metadata["general.architecture"] == "llama"
        assert model.metadata["llama.block_count"] == 7
        assert model.metadata["one.double"] == 0.1
        assert model.metadata["tokenizer.ggml.scores"] == [0.0, -1.5, 2.0]
        tokens = model.metadata["tokenizer.ggml.tokens"]
        assert [t.encode("utf-8", "surrogateescape") for t in tokens] == [b"a", b"\xff\xfe", b"c"]
        assert model.tensors["b.weight"].shape == (6, 64)
        assert bytes(model.read("a.weight")) == weights.tobytes()
        assert bytes(model.read("b.weight")) == packed.tobytes()


def test_token_bytes_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = [b"\xff".decode("utf-8", "surrogateescape"), "é", b"\xe2\x82".decode("utf-8", "surrogateescape")]
    write_gguf(path, {"tokenizer.ggml.tokens": tokens}, [])
    assert b"\xff" in path.read_bytes()
    with open_gguf(path) as model:
        assert model.metadata["tokenizer.ggml.tokens"] == tokens


def test_large_string_arrays_cross_chunks(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    rng = random.Random(5)
    tokens = ["x" * rng.randrange(60) + str(i) for i in range(200_000)]
    write_gguf(path, {"tokenizer.ggml.tokens": tokens, "after": "end"}, [])
    assert path.stat().st_size > 8 << 20
    with open_gguf(path) as model:
        assert model.metadata == {"tokenizer.ggml.tokens": tokens, "after": "end"}
        assert model.tensors == {}


@pytest.mark.parametrize("chunk", [1, 2, 7, 8, 9, 31])
def test_chunk_boundaries_may_fall_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    path = tmp_path / "model.gguf"
    _write(path, _tensors(), **{"t.nested": NESTED})
    with open_gguf(path) as model:
        expected = (model.metadata, model.types, model.tensors)
    monkeypatch.setattr("spola.formats.gguf_cursor._CHUNK", chunk)
    with open_gguf(path) as model:
        assert (model.metadata, model.types, model.tensors) == expected


def test_ranges_and_buffers(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensor = _tensors()[3]
    write_gguf(path, {}, [tensor])
    assert isinstance(tensor.data, bytes)
    with open_gguf(path) as model:
        assert model.read_range(tensor.name, 34, 68) == tensor.data[34:102]
        target = np.zeros((2, 34), dtype=np.uint8)
        model.read_into(tensor.name, memoryview(target), 34)
        assert target.tobytes() == tensor.data[34:102]
        for start, count in ((-1, 4), (0, tensor.nbytes + 1), (tensor.nbytes, 1), (0, -1)):
            with pytest.raises(ValueError, match="outside of"):
                model.read_range(tensor.name, start, count)
        with pytest.raises(ModelError, match="has no tensor 'absent'"):
            model.read("absent")
    with pytest.raises(ModelError, match="was closed before"):
        model.read(tensor.name)


def test_a_file_cut_after_opening_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensor = _tensors()[4]
    write_gguf(path, {}, [tensor])
    with open_gguf(path) as model:
        with path.open("r+b") as file:
            file.truncate(model.tensors[tensor.name].offset + 10)
        with pytest.raises(ModelError, match="cut while being read"):
            model.read(tensor.name)


def test_fingerprint_tells_models_apart(tmp_path: Path) -> None:
    prints = set()
    for index, value in enumerate((1, 2)):
        path = tmp_path / f"{index}.gguf"
        write_gguf(path, {"x": value}, _tensors())
        with open_gguf(path) as first, open_gguf(path) as second:
            assert first.fingerprint == second.fingerprint
            prints.add(first.fingerprint)
    assert len(prints) == 2


def test_data_is_streamed_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = _tensors()[0]
    assert isinstance(whole.data, bytes)
    data = whole.data
    parts = NewTensor(
        "w", whole.dtype, whole.shape, lambda: (data[i : i + 7] for i in range(0, len(data), 7))
    )
    write_gguf(path, {}, [parts])
    with open_gguf(path) as model:
        assert model.read("w") == data


@pytest.mark.parametrize("size", [0, 59, 61])
def test_wrong_data_leaves_no_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(ValueError, match=f"has {size} bytes of data; 60 were expected"):
        write_gguf(path, {}, [NewTensor("w", BY_NAME["F32"], (3, 5), bytes(size))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, FieldType(V.BOOL)),
        (5, FieldType(V.UINT32)),
        (-5, FieldType(V.INT32)),
        (2**32, FieldType(V.INT64)),
        (2**63, FieldType(V.UINT64)),
        ([1, 2], FieldType(V.ARRAY, FieldType(V.INT32))),
        ([1, 2**31], FieldType(V.ARRAY, FieldType(V.UINT32))),
        ([-1, 2**31], FieldType(V.ARRAY, FieldType(V.INT64))),
        ([True], FieldType(V.ARRAY, FieldType(V.BOOL))),
        ([[1.0]], FieldType(V.ARRAY, FieldType(V.ARRAY, FieldType(V.FLOAT32)))),
    ],
)
def test_inferred_types(value: Any, kind: FieldType) -> None:
    assert infer_type(value) == kind


@pytest.mark.parametrize("value", [[], [1, "a"], [1, True], None, {"a": 1}, 2**64, [-1, 2**63]])
def test_what_cannot_be_inferred(value: Any) -> None:
    with pytest.raises(ValueError):
        infer_type(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(256, V.UINT8), (-1, V.UINT32), ("a", V.INT32), (1e39, V.FLOAT32), (3, V.STRING), (2**63, V.INT64)],
)
def test_values_out_of_range_are_refused(tmp_path: Path, value: Any, kind: ValueType) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        write_gguf(tmp_path / "x.gguf", {"key": value}, [], types={"key": FieldType(kind)})


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"general.alignment": 24}, [], "alignment 24 is not a power of two"),
        ({"general.alignment": 0}, [], "alignment 0 is not a power of two"),
        ({}, [NewTensor("w", BY_NAME["F32"], (), b"")], r"tensor w has the shape \(\)"),
        ({}, [NewTensor("w", BY_NAME["F32"], (2, 0), b"")], r"tensor w has the shape \(2, 0\)"),
        ({}, [NewTensor("w", BY_NAME["Q4_0"], (2, 16), bytes(18))], "rows of 16 do not fit Q4_0"),
        ({}, [NewTensor("w", BY_NAME["F32"], (1,), bytes(4))] * 2, "two tensors have the same name"),
    ],
)
def test_the_writer_refuses_what_no_reader_takes(
    tmp_path: Path, metadata: dict[str, Any], tensors: list[NewTensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_gguf(tmp_path / "x.gguf", metadata, tensors)
    assert list(tmp_path.iterdir()) == []
