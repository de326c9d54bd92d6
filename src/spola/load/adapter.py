"""A LoRA adapter on disk (PEFT's folder: ``adapter_config.json`` and ``adapter_model.safetensors``) ->
core.Adapter.

Low-rank adaptation (Hu et al., arXiv 2106.09685): y = W x + s B (A x), s = alpha / r, or alpha / sqrt(r) for
rank- stabilised ones (arXiv 2312.03732). Every key of the configuration that would change the result is
obeyed or refused by name, and every tensor must find its matrix. Nothing pickled is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spola.core.errors import ModelError
from spola.core.runner import Adapter, AdapterPart
from spola.formats.files import path_text
from spola.formats.json_file import read_json
from spola.formats.safetensors import open_safetensors
from spola.formats.tensors import TensorSource
from spola.load.weights import Converter, convert_tensor, read_rows
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import TensorInfo
from spola.spec.sites import Site, adapter_sites
from spola.spec.sources import Piece, Source

__all__ = ["MAX_RANK", "open_adapter"]

MAX_RANK = 1024
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_PREFIXES = ("", "language_model.", "model.language_model.")
# What says nothing about the result: of training, of where things came from, or obeyed below.
_HARMLESS = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "loftq_config",
        "megatron_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
        "exclude_modules",
        "qalora_group_size",
        "ensure_weight_tying",
    ]
)


def open_adapter(path: Path, name: str, spec: DecoderSpec, convert: Converter) -> Adapter:
    """The adapter in the folder ``path`` for a model of ``spec``; ``convert`` makes its values f32.

    Raises ModelError naming the folder and the key, module or tensor that is wrong or not supported.
    """
    try:
        return _open(path, name, spec, convert)
    except ModelError as error:
        text = str(error)
        raise ModelError(text if path_text(path) in text else f"{path_text(path)}: {text}") from None


def _open(path: Path, name: str, spec: DecoderSpec, convert: Converter) -> Adapter:
    if not path.is_dir():
        raise ModelError("is no folder; an adapter is a folder with adapter_config.json")
    if not (path / _CONFIG).exists():
        raise ModelError(f"holds no {_CONFIG}")
    if not (path / _WEIGHTS).exists():
        pickled = (path / "adapter_model.bin").exists()
        more = (
            "; adapter_model.bin is a pickle, which is never read: save it as safetensors" if pickled else ""
        )
        raise ModelError(f"holds no {_WEIGHTS}{more}")
    config = read_json(path / _CONFIG)
    rank, scale = _config(config)
    with open_safetensors(path / _WEIGHTS) as file:
        modules = _modules(file)
        _check_targets(config, modules)
        parts = {}
        sites = adapter_sites(spec)
        used: set[str] = set()
        for site in sites:
            found = _module(site, modules)
            if found is None:
                continue
            used.add(found)
            parts[site.info.name] = _part(file, site, modules[found], rank, convert)
        unknown = next((module for module in modules if module not in used), None)
        if unknown is not None:
            raise ModelError(
                f"module {unknown[:120]} is none of the matrices of this model that adapters can change"
            )
        _check_transposed(config, sites)
    if not parts:
        raise ModelError(f"{_WEIGHTS} holds no LoRA tensors")
    return Adapter(name=name, rank=rank, scale=scale, parts=parts)


def _config(config: Mapping[str, Any]) -> tuple[int, float]:
    """Rank and scale. Refuses what would change the result otherwise."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ModelError(f"{_CONFIG}: peft_type {str(kind)[:40]!r} is not supported; LORA is")
    rank = config.get("r")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise ModelError(f"{_CONFIG}: r must be a rank from 1 to {MAX_RANK}, not {str(rank)[:40]!r}")
    alpha = config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1e9:
        raise ModelError(f"{_CONFIG}: lora_alpha must be a number above 0, not {str(alpha)[:40]!r}")
    if config.get("use_dora"):
        raise ModelError(f"{_CONFIG}: use_dora is not supported: its weights are scaled by column")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{_CONFIG}: bias {str(config['bias'])[:40]!r} is not supported: only 'none' is")
    for key, value in config.items():
        if key not in _HARMLESS and value:
            raise ModelError(f"{_CONFIG}: {key[:60]} is not supported")
    rs = config.get("use_rslora", False)
    if not isinstance(rs, bool | None):
        raise ModelError(f"{_CONFIG}: use_rslora must be true or false")
    return rank, float(alpha / (math.sqrt(rank) if rs else rank))


def _modules(file: TensorSource) -> dict[str, dict[str, str]]:
    """Module -> {A, B} -> tensor name."""
    out: dict[str, dict[str, str]] = {}
    for name in (*file.tensors, *file.unsupported):
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ModelError(
                f"tensor {name[:120]} is not supported: it is no lora_A or lora_B of a linear layer"
            )
        out.setdefault(match[1], {})[match[2]] = name
    for module, pair in out.items():
        if len(pair) < 2:
            raise ModelError(f"module {module[:120]} has lora_{next(iter(pair))} only")
    return out


def _check_targets(config: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """The list in the configuration and the modules that have tensors must be the same."""
    targets = config.get("target_modules")
    if isinstance(targets, str):  # an expression, or all-linear: what has tensors counts
        return
    if not isinstance(targets, list) or not targets or not all(isinstance(t, str) for t in targets):
        raise ModelError(f"{_CONFIG}: target_modules must be a list of names")

    def fits(module: str, target: str) -> bool:
        return module == target or module.endswith(f".{target}")

    for target in targets:
        if not any(fits(module, target) for module in modules):
            raise ModelError(
                f"{_CONFIG}: target_modules names {target[:60]!r}, for which there are no tensors"
            )
    for module in modules:
        if not any(fits(module, target) for target in targets):
            raise ModelError(f"module {module[:120]} is not among target_modules")


def _check_transposed(config: Mapping[str, Any], sites: list[Site]) -> None:
    stated = config.get("fan_in_fan_out", False)
    stored = any(site.transposed for site in sites)
    if bool(stated) and not stored:
        raise ModelError(f"{_CONFIG}: fan_in_fan_out is true, but this model's matrices are not transposed")


def _module(site: Site, modules: Mapping[str, Any]) -> str | None:
    names = [prefix + name for name in site.modules for prefix in _PREFIXES]
    return next((name for name in names if name in modules), None)


def _part(
    file: TensorSource, site: Site, names: Mapping[str, str], rank: int, convert: Converter
) -> AdapterPart:
    rows, columns = site.info.shape
    total = site.rows_in_module
    shapes = {"A": (rank, columns), "B": (total, rank)}
    for which, shape in shapes.items():
        entry = file.entry(names[which])
        if entry.shape != shape:
            raise ModelError(
                f"tensor {names[which][:120]} has shape {list(entry.shape)}, expected {list(shape)}"
            )
    a = _values(file, names["A"], (rank, columns), (Piece(names["A"], 0, rank, rank),), convert)
    pieces = tuple(replace(piece, name=names["B"]) for piece in site.rows)
    return AdapterPart(a=a, b=_values(file, names["B"], (rows, rank), pieces, convert))


def _values(
    file: TensorSource, name: str, shape: tuple[int, int], source: Source, convert: Converter
) -> bytes:
    info = TensorInfo(name, name, (), shape, "linear")
    stored = file.entry(name).dtype.name
    if stored == "F32":
        return b"".join(read_rows(file, info, source))
    return b"".join(convert_tensor(file, info, source, "F32", convert))
