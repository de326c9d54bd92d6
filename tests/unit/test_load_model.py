"""An opened model: tensors in manifest order, defaults, names in errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from spola.formats.gguf_write import write_gguf
from spola.load.defaults import generation_defaults
from spola.load.model import open_model, open_tokenizer
from spola.load.resolve import ModelPath
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.spec.manifest import manifest
from support.tiny import Tiny, write_tiny_gguf


def where(path: Path) -> ModelPath:
    return ModelPath(path, path.stem)


def test_tensors_come_in_manifest_order_after_the_large_tables(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny = write_tiny_gguf(path, Tiny(tied=False))
    with open_model(where(path)) as model:
        assert manifest(model.spec) == manifest(tiny.spec)
        wanted = {tensor.name: bytes(tensor.data) for tensor in tiny}
        seen = []
        for tensor in model.tensors():
            seen.append(tensor.name)
            assert tensor.data.readonly
            assert bytes(tensor.data) == wanted[tensor.name]
            assert tensor.dtype == model.dtypes[tensor.name]
        infos = manifest(tiny.spec)
        tables = [info.name for info in infos if info.role in ("embedding", "head")]
        assert seen == [*tables, *(info.name for info in infos if info.name not in tables)]
        assert model.weights_bytes == sum(map(len, wanted.values()))
        assert model.template is not None


def test_the_tokenizer_of_a_vocabulary_only_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_gguf(path, Tiny().metadata(), [])
    tokenizer = open_tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("hé 😸")) == "hé 😸"
    with pytest.raises(ModelError, match=r"vocab\.gguf: .*token_embd"):
        open_model(where(path))


def test_a_fault_in_the_metadata_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_tiny_gguf(tmp_path / "good.gguf")
    with open_gguf(tmp_path / "good.gguf") as file:
        metadata = {**file.metadata, "general.architecture": "nonsense"}
    write_gguf(path, metadata, [])
    with pytest.raises(ModelError, match=r"bad\.gguf: .*nonsense"):
        open_model(where(path))


def test_sampling_defaults_of_the_file() -> None:
    found, warnings = generation_defaults(
        {"general.sampling.temp": 0.7, "general.sampling.top_k": 40, "general.sampling.top_p": 3.0}
    )
    assert found == {"temperature": 0.7, "top_k": 40}
    assert len(warnings) == 1
    assert "general.sampling.top_p is ignored" in warnings[0]
    assert generation_defaults({"general.sampling.temp": "hot"})[0] == {}


def test_what_loading_says_of_a_tensor_names_the_file_and_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    with open_model(where(path)) as model:
        for said in ("holds a value that is not finite", "must be F32"):
            with pytest.raises(ModelError) as caught, model.naming():
                raise ModelError(f"tensor layers.1.attention.v.weight: {said}")
            assert (
                str(caught.value)
                == f"{path}: tensor blk.1.attn_v.weight, layers.1.attention.v.weight: {said}"
            )
        with pytest.raises(ModelError, match=rf"^{re.escape(str(path))}: it is too large$"), model.naming():
            raise ModelError("it is too large")


def test_a_damaged_file_is_named_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    with open_gguf(path) as file:
        entry = file.tensors["blk.1.ffn_norm.weight"]
    data = bytearray(path.read_bytes())
    data[entry.offset : entry.offset + 4] = b"\0\0\xc0\x7f"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=rf"^{re.escape(str(path))}: tensor blk.1.ffn_norm.weight, "):
        load_engine(str(path), Options(backend="reference", max_model_len=32))
