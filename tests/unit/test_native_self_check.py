"""On first use kernels are compared with their twins: kept, believed, and obeyed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spola.core.errors import ConfigError

_native = pytest.importorskip("spola._native")
probe = pytest.importorskip("spola.backends.native.probe")


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Instruction sets that were compared; those in ``wrong`` have a kernel that differs."""
    calls: list[str] = []
    wrong: set[str] = set()

    def self_check(isa: str) -> str:
        calls.append(isa)
        return "rope" if isa in wrong else ""

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPOLA_ISA", raising=False)
    monkeypatch.setattr(probe._native, "usable_isas", lambda: ["fast", "middling", "scalar"])
    monkeypatch.setattr(probe._native, "self_check", self_check)
    return calls, wrong


def test_every_set_of_this_processor_agrees_with_the_twins() -> None:
    for isa in _native.usable_isas():
        assert _native.self_check(isa) == ""


def test_the_result_is_kept(checked) -> None:
    calls, _ = checked
    assert probe.requested_isa() == "fast"
    assert probe.requested_isa() == "fast"
    assert calls == ["fast"]


def test_a_mismatch_falls_back_and_says_so(checked, caplog: pytest.LogCaptureFixture) -> None:
    calls, wrong = checked
    wrong |= {"fast", "middling"}
    with caplog.at_level(logging.WARNING):
        assert probe.requested_isa() == "scalar"
        assert probe.requested_isa() == "scalar"
    assert calls == ["fast", "middling"]
    assert "fast kernel rope" in caplog.text
    assert "middling kernel rope" in caplog.text


def test_another_build_is_compared_anew(checked, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, wrong = checked
    wrong.add("fast")
    assert probe.requested_isa() == "middling"
    wrong.clear()
    monkeypatch.setattr(probe, "native_build", lambda: "new")
    assert probe.requested_isa() == "fast"
    assert calls == ["fast", "middling", "fast"]


def test_a_set_that_was_asked_for_is_refused(checked, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wrong = checked
    wrong.add("avx2")
    monkeypatch.setattr(probe._native, "usable_isas", lambda: ["avx2", "scalar"])
    monkeypatch.setenv("SPOLA_ISA", "avx2")
    with pytest.raises(ConfigError, match=r"avx2.*rope"):
        probe.requested_isa()


def test_a_home_that_cannot_be_written(checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, _ = checked
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert probe.requested_isa() == "fast"
    assert probe.requested_isa() == "fast"
    assert calls == ["fast", "fast"]
