"""What is predicted before a model is loaded is what it takes: native weights of every type, KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.core.dtype import BY_GGUF_ID
from spola.core.errors import CapacityError
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from support.tiny import Tiny, write_tiny_gguf

EXTRA = 1 << 17  # rope tables, padding between parts


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", [kind.name for kind in BY_GGUF_ID.values()])
def test_the_weights_take_what_was_predicted(dtype: str, precise: bool, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    shape = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ff": 512, "layers": 1}
    write_tiny_gguf(path, Tiny(dtype=dtype, tied=False, context=256, **shape))
    loaded = load_engine(str(path), Options(max_seqs=2, precise=precise))
    held = loaded.engine.runner.memory()
    assert loaded.config.packed_bytes <= held["weights"] <= loaded.config.packed_bytes + EXTRA
    assert held["kv"] == loaded.config.kv_bytes
    loaded.engine.runner.close()


def test_what_cannot_fit_is_refused_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    monkeypatch.setattr("spola.load.model.Model.tensors", lambda self: pytest.fail("weights were read"))
    with pytest.raises(CapacityError, match="kv_memory is"):
        load_engine(str(path), Options(kv_memory=1 << 49))
