"""Folders written as GGUF: each family's file has the logits of ``transformers``, or is refused by what GGUF
lacks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spola.core.errors import ModelError
from spola.load.model import Model, open_model
from spola.load.resolve import resolve_model
from spola.quantize.write import quantize
from support.families import CASES, Case, write_folder
from support.hf_tokenizer import folder_tokenizer
from support.loaded import NO_GGUF, ONLY_GGUF, case_of, check, convert, cosines, load


def open_folder(folder: Path, case: Case) -> Model:
    """The case as a folder that has a tokenizer, of no more tokens than the model has rows."""
    write_folder(folder, case)
    folder_tokenizer(folder, case.text_config["vocab_size"])
    return open_model(resolve_model(str(folder)))


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*NO_GGUF, *ONLY_GGUF)])
def test_the_file_of_a_family_is_the_same_model(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    with open_folder(tmp_path / "hf", case) as model:
        quantize(model, tmp_path / "model.gguf", "F32", convert)
    loaded = load(tmp_path / "model.gguf", case, "native")
    assert loaded.warnings == ()
    check(loaded.logits((64,)), case)


@pytest.mark.parametrize("name", [name for name in NO_GGUF if name != "qwen2-window"])
def test_what_gguf_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    with open_folder(tmp_path / "hf", case_of(name)) as model, pytest.raises(ModelError, match="cannot say"):
        quantize(model, tmp_path / "model.gguf", "F32", convert)
    assert not (tmp_path / "model.gguf").exists()


def test_experts_and_norms_with_an_offset_are_quantized_from_bf16(tmp_path: Path) -> None:
    for name in ("gemma2", "mixtral"):
        case = case_of(name)
        write_folder(tmp_path / name, case, dtype="BF16")
        folder_tokenizer(tmp_path / name, case.text_config["vocab_size"])
        with open_model(resolve_model(str(tmp_path / name))) as model:
            done = quantize(model, tmp_path / f"{name}.gguf", "Q8_0", convert)
        assert set(done.bytes_by_type) >= {"F32", "Q8_0"} or done.notes
        found = load(tmp_path / f"{name}.gguf", case, "native").logits((64,))
        cosine = np.median(cosines(found, case))
        assert cosine > 0.99, (name, cosine)
