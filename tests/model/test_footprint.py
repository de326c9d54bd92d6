"""What the native decoder is predicted to take is what it takes, to the byte, for every kind of model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.native import NativeRunner
from spola.core.dtype import BY_GGUF_ID
from spola.core.params import SamplingParams
from spola.core.runner import RunnerConfig, Tensor
from spola.engine.request import Request
from spola.formats.gguf import open_gguf
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import open_folder
from spola.load.model import open_model
from spola.load.resolve import ModelPath, embedded_model
from spola.load.weights import iter_tensors, source_dtypes
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.from_hf import from_hf
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from support.families import CASES, read_case, write_folder
from support.family_gguf import write_case_gguf
from support.tiny import Tiny, write_tiny_gguf

ONLY_GGUF = ("gpt_oss",)


def check(
    spec: DecoderSpec,
    dtypes: Mapping[str, str],
    tensors: Iterable[Tensor],
    kv: tuple[str, str] = ("f16", "f16"),
    **changes: object,
) -> None:
    groups = kv_groups(spec, *kv)
    length = min(100, spec.context)
    fields = {"max_step_tokens": 96, "max_seqs": 4, "max_model_len": length, "threads": 2} | changes
    config = RunnerConfig(kv_groups=groups, kv_blocks=(7,) * len(groups), **fields)
    runner = NativeRunner()
    predicted = runner.footprint(spec, dtypes, config)
    assert 0 <= predicted.pop("positions") < predicted["weights"]
    runner.load(spec, tensors, config)
    assert predicted == runner.memory()
    runner.close()


@pytest.mark.parametrize("dtype", [t.name for t in BY_GGUF_ID.values()])
def test_every_weight_type(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    shape = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ff": 512, "layers": 1}
    write_tiny_gguf(path, Tiny(dtype=dtype, tied=False, context=256, **shape))
    with open_model(ModelPath(path, "tiny")) as model:
        check(model.spec, model.dtypes, model.tensors())
        other = {"precise": True, "threads": 1, "max_step_tokens": 17, "max_lora_rank": 5}
        check(model.spec, model.dtypes, model.tensors(), ("f32", "int8"), **other)


@pytest.mark.parametrize("case", CASES)
def test_every_family(case: str, tmp_path: Path) -> None:
    if case in ONLY_GGUF:
        write_case_gguf(tmp_path / "model.gguf", read_case(case))
        with open_gguf(tmp_path / "model.gguf") as gguf:
            table = {name: (entry.dtype.name, entry.shape) for name, entry in gguf.tensors.items()}
            spec, _ = from_gguf(gguf.metadata, table)
            sources = gguf_sources(spec, table)
            check(spec, source_dtypes(gguf, sources), iter_tensors(gguf, manifest(spec), sources))
        return
    write_folder(tmp_path, read_case(case))
    values = read_json(tmp_path / "config.json")
    with open_folder(tmp_path) as file:
        table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
        model = from_hf(values, table)
        tensors = iter_tensors(file, manifest(model.spec), model.sources)
        check(model.spec, source_dtypes(file, model.sources), tensors)


def test_the_embedded_model() -> None:
    path = embedded_model()
    if path is None:
        pytest.skip("smollm2 is not here")
    with open_model(ModelPath(path, "smollm2")) as model:
        check(model.spec, model.dtypes, model.tensors(), max_step_tokens=512, max_model_len=8192)


def test_ops_are_timed_only_when_asked(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", Tiny(layers=2))
    loaded = load_engine(str(tmp_path / "tiny.gguf"), Options(max_seqs=1))
    runner: Any = loaded.engine.runner

    def generate() -> None:
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        loaded.engine.add(Request(id=len(seen) + 1, ids=list(range(20)), params=params))
        seen.append(1)
        while loaded.engine.has_work:
            loaded.engine.step(0.0)

    seen: list[int] = []
    generate()
    assert runner.op_times() == []
    runner.time_ops(True)
    generate()
    times = runner.op_times()
    matrices = [name for _, names, _ in times for name in names]
    assert "layers.1.mlp.down.weight" in matrices
    assert [kind for kind, _, _ in times[-2:]] == ["head", "sample"]
    spent = {kind: seconds for kind, _, seconds in times}
    assert all(spent[kind] > 0 for kind in ("linear", "attention", "rope_kv", "head", "sample"))
    runner.time_ops(True)
    assert sum(seconds for _, _, seconds in runner.op_times()) == 0
    runner.time_ops(False)
    assert runner.op_times() == []
    loaded.engine.close()
