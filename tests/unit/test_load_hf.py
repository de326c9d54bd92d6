"""Folders: what is found in which file, and that each fault is one line naming the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from spola import LLM, SamplingParams
from spola.cli import main as cli
from spola.core.errors import ModelError
from spola.load.model import open_model, open_tokenizer
from spola.load.resolve import ModelPath, resolve_model
from support.families import read_case, write_folder
from support.hf_tokenizer import write_tokenizer
from support.sentencepiece import sentencepiece_model
from support.tiny import Tiny, write_tiny_gguf, write_tiny_safetensors

CASE = read_case("llama")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder of a tiny llama."""
    model = write_tiny_safetensors(tmp_path / "tiny", Tiny(tied=True))
    write_tokenizer(tmp_path / "tiny", model.metadata)
    return tmp_path / "tiny"


def where(folder: Path) -> ModelPath:
    return resolve_model(str(folder))


def test_the_same_model_as_gguf_and_as_folder(tmp_path: Path) -> None:
    tiny = Tiny(dtype="F32")
    model = write_tiny_gguf(tmp_path / "tiny.gguf", tiny)
    write_tiny_safetensors(tmp_path / "hf", tiny)
    write_tokenizer(tmp_path / "hf", model.metadata)
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    prompts = ["the rain in Spain", "12 <|im_end|> é😸"]
    outputs = []
    for name in ("tiny.gguf", "hf"):
        with LLM(str(tmp_path / name), backend="reference", kv_dtype="f32", kv_memory=8 << 20) as llm:
            outputs.append([out.outputs[0].token_ids for out in llm.generate(prompts, params)])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_types_and_shards_load_to_the_same_tensors(tmp_path: Path, dtype: str) -> None:
    write_folder(tmp_path / "one", CASE, dtype=dtype)
    write_folder(tmp_path / "three", CASE, dtype=dtype, shards=3)
    model = write_tiny_gguf(tmp_path / "t.gguf", Tiny())
    found = []
    for name in ("one", "three"):
        write_tokenizer(tmp_path / name, model.metadata)
        with open_model(where(tmp_path / name)) as opened:
            found.append({t.name: (t.dtype, t.shape, bytes(t.data)) for t in opened.tensors()})
            assert opened.weights_bytes == sum(len(data) for _, _, data in found[-1].values())
    assert found[0] == found[1]
    assert found[0]["layers.1.mlp.up.weight"][:2] == (
        dtype,
        CASE.weights["model.layers.1.mlp.up_proj.weight"].shape,
    )


@pytest.mark.parametrize("same", [True, False])
def test_a_head_in_the_files_of_a_tied_model(tmp_path: Path, same: bool) -> None:
    case = read_case("llama3")
    head = case.weights["model.embed_tokens.weight"] * np.float32(1 if same else 0.5)
    write_folder(tmp_path, replace(case, weights={**case.weights, "lm_head.weight": head}))
    write_tokenizer(tmp_path, write_tiny_gguf(tmp_path.parent / "t.gguf", Tiny()).metadata)
    with open_model(where(tmp_path)) as opened:
        assert opened.spec.head.tied is same
        assert any("lm_head" in line for line in opened.warnings) is not same
        assert ("head.weight" in {t.name for t in opened.tensors()}) is not same


def test_a_stray_file_is_not_read(tmp_path: Path) -> None:
    write_folder(tmp_path, CASE, shards=2)
    write_tokenizer(tmp_path, write_tiny_gguf(tmp_path.parent / "t.gguf", Tiny()).metadata)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04nonsense")
    with open_model(where(tmp_path)) as opened:
        assert opened.warnings == ()


def test_defaults_and_ends(folder: Path) -> None:
    with open_model(where(folder)) as opened:
        assert opened.defaults == {}
        assert opened.template is None
        assert opened.tokenizer.eos_id == 2
    generation = {"do_sample": True, "top_p": 0.9, "top_k": 0, "temperature": 0.6, "eos_token_id": [2, 7]}
    (folder / "generation_config.json").write_text(json.dumps(generation | {"min_p": 3}))
    with open_model(where(folder)) as opened:
        assert opened.defaults == {"top_p": 0.9, "top_k": 0, "temperature": 0.6}
        assert opened.tokenizer.eos_ids >= {2, 7}
        assert [w for w in opened.warnings if "min_p" in w]
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    with open_model(where(folder)) as opened:  # sampling settings without sampling
        assert opened.defaults == {}


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"chat_template.jinja": "A", "chat_template.json": '{"chat_template": "B"}'}, "A"),
        ({"chat_template.json": '{"chat_template": "B"}'}, "B"),
        ({}, None),
    ],
)
def test_places_of_the_chat_template(folder: Path, files: dict[str, str], template: str | None) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    with open_model(where(folder)) as opened:
        assert opened.template == template


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_does_not_lead_out_of_the_folder(folder: Path, name: str) -> None:
    """R39: /props shows a template, which must not be any file of this machine."""
    secret = folder.parent / "secret"
    secret.write_text("of somebody else")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(ModelError, match="is a link out of the model's folder") as caught:
        open_model(where(folder))
    assert "somebody" not in str(caught.value)
    (folder / name).unlink()
    (folder / "mine").write_text("T")
    (folder / name).symlink_to(folder / "mine")
    with open_model(where(folder)) as opened:
        assert "T" in (opened.template, opened.tool_template)


def test_a_folder_of_links_as_in_the_cache_of_the_hub(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("T")
    snapshot = folder.parent / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    with open_model(where(snapshot)) as opened:
        assert opened.template == "T"


def test_named_chat_templates(folder: Path) -> None:
    metadata = write_tiny_gguf(folder / "t.gguf", Tiny()).metadata
    (folder / "t.gguf").unlink()
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    for template, wanted in ((named, "D"), ("S", "S"), (named[:1], None)):
        write_tokenizer(folder, metadata, chat_template=template)
        with open_model(where(folder)) as opened:
            assert opened.template == wanted


def test_a_sentencepiece_model_where_there_is_no_json(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    with open_model(where(folder)) as opened:
        assert opened.tokenizer.decode(opened.tokenizer.encode("ab c")) == "ab c"
        assert opened.tokenizer.eos_ids == {2, 7}


def test_only_the_tokenizer(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert open_tokenizer(folder).encode("the 12") != []


def test_inspect(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["inspect", str(folder), "--json", "--tensors"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["runs"] is True
    assert (found["format"], found["architecture"]) == ("safetensors", "llama")
    assert (found["model"]["layers"], found["tokenizer"]["size"]) == (2, 288 - 19)
    assert len(found["tensor_list"]) == found["tensors"]
    edit("config.json", model_type="mamba")(folder)
    result = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert result.exit_code == 0
    assert "model: config.json: model_type 'mamba' is not supported" in result.output


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        values = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(values | changes))

    return change


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def index(**table: Any) -> Callable[[Path], None]:
    return edit("model.safetensors.index.json", weight_map=table)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def two_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())


def eight_bits(folder: Path) -> None:
    """Change the type of one tensor to F8 in the header; its bytes and so the file become another size."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    name = max(header, key=lambda k: header[k].get("data_offsets", (0, 0))[1])
    row = header[name]
    row |= {"dtype": "F8_E4M3", "shape": [row["shape"][0] * 4, *row["shape"][1:]]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n :])


EMBED = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("tokenizer.json"), "has no tokenizer.json, tokenizer.model or tekken.json"),
        (remove("model.safetensors"), "holds no .safetensors file"),
        (only_pickled, "holds weights as pytorch_model.bin only, which is pickled; safetensors are needed"),
        (
            two_files,
            "holds 2 .safetensors files (a.safetensors, b.safetensors) but no model.safetensors.index",
        ),
        (write("config.json", b"{"), "config.json: is no valid JSON"),
        (write("config.json", b"[]"), "config.json: holds no JSON object"),
        (
            write("config.json", b'{"model_type": "llama", "model_type": "gemma"}'),
            "has the key 'model_type' twice",
        ),
        (write("config.json", b"[" * 100_000), "config.json: is nested too deep"),
        (write("config.json", b"\xff\xfe\xfd"), "config.json: is no valid JSON"),
        (edit("config.json", model_type="mamba"), "model_type 'mamba' is not supported"),
        (
            edit("config.json", quantization_config={"quant_method": "awq"}),
            "quant_method 'awq' is not supported",
        ),
        (edit("config.json", num_hidden_layers=3), "tensor model.layers.2.input_layernorm.weight is missing"),
        (edit("config.json", eos_token_id="x"), "config.json: eos_token_id must be a token id"),
        (edit("generation_config.json", eos_token_id=[-1]), "generation_config.json: eos_token_id must be"),
        (edit("tokenizer_config.json", chat_template=5), "chat_template must be a string or a list"),
        (write("chat_template.jinja", b"\xff"), "chat_template.jinja: is not UTF-8 at byte 0"),
        (index(), "has no weight_map"),
        (index(**{EMBED: 5}), "is in '5', which is no file name"),
        (index(**{EMBED: "../x.safetensors"}), "which is no file name"),
        (index(**{EMBED: "/etc/x.safetensors"}), "which is no file name"),
        (index(**{EMBED: "sub/x.safetensors"}), "which is no file name"),
        (index(**{EMBED: "pytorch_model.bin"}), "which is no file name"),
        (index(**{EMBED: "gone.safetensors"}), "gone.safetensors: no such file, but model.safetensors.index"),
        (
            index(odd="model.safetensors"),
            "model.safetensors: has no tensor 'odd', which model.safetensors.index",
        ),
        (index(**{EMBED: "model.safetensors"}), "tensor model.layers.0.input_layernorm.weight is missing"),
        (eight_bits, "F8_E4M3"),
    ],
)
def test_faults(folder: Path, change: Callable[[Path], None], message: str) -> None:
    change(folder)
    with pytest.raises(ModelError) as caught:
        open_model(ModelPath(folder, "tiny", kind="hf"))
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
