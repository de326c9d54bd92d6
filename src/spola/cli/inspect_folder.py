"""What ``spola inspect`` says of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spola.cli.inspect_parts import answering, attempt, model_of, tensor_list, tensors_of, tokenizer_of
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import FolderTensors, open_folder
from spola.load.defaults import folder_defaults
from spola.load.hf_folder import folder_template, open_hf_tokenizer
from spola.spec.from_hf import from_hf

__all__ = ["look_at_folder"]


def look_at_folder(folder: Path, *, tensors: bool, template: bool) -> dict[str, Any]:
    """Everything that can be found out; the reasons for what cannot are under ``unusual``."""
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    unusual: list[str] = []
    with open_folder(folder) as file:
        found: dict[str, Any] = {
            "path": str(folder),
            "files": len(file.paths),
            "format": "safetensors",
            "fingerprint": file.fingerprint,
            "name": folder.resolve().name,
            "architecture": config.get("model_type"),
            "license": None,
        }
        found |= tensors_of(file)
        found["model"] = attempt(lambda: _model(config, file, unusual), unusual, "model")
        found["tokenizer"] = attempt(
            lambda: tokenizer_of(open_hf_tokenizer(folder), None), unusual, "tokenizer"
        )
        defaults = folder_defaults(read_json(generation) if generation.exists() else {})
        found |= answering(file, lambda: folder_template(folder), defaults, unusual)
        found["runs"] = found["model"] is not None and found["tokenizer"] is not None
        if tensors:
            found["tensor_list"] = tensor_list(file)
    if template:
        found["template_source"] = folder_template(folder)
    return found


def _model(config: dict[str, Any], file: FolderTensors, unusual: list[str]) -> dict[str, Any]:
    table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
    model = from_hf(config, table)
    unusual += model.warnings
    if model.spec.head.tied:
        unusual.append("the head is tied: the embedding serves as both")
    return model_of(model.spec)
