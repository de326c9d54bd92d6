"""spola batch over the null backend: OpenAI's lines, errors per line, resuming, one result for each id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.server.asks import fingerprint
from spola.server.batch import batch_salt, partial_path, run_batch
from spola.server.batch_input import BatchInput
from support.batch_lines import chat, completion, mixed, write_lines
from support.cli import Done, spola
from support.service import Parrot, tiny_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory.mktemp("model"))


def batch(model: Path, source: Path, out: Path, *more: str) -> Done:
    return spola("batch", str(source), "-o", str(out), "-m", str(model), "--backend", "null", *more)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_come_in_openais_shape_in_the_order_of_the_input(model: Path, tmp_path: Path) -> None:
    lines = [
        chat("a", temperature=0.8, seed=7),
        completion("b", priority=3) | {"priority": -2},
        completion("c", "some words", max_tokens=3),
    ]
    del lines[1]["body"]["priority"]
    out = tmp_path / "out.jsonl"
    done = batch(model, write_lines(tmp_path / "in.jsonl", lines), out, "--json")
    assert done.returncode == 0, done.stderr
    results = read(out)
    assert [r["custom_id"] for r in results] == ["a", "b", "c"]
    assert len({r["id"] for r in results}) == len({r["response"]["request_id"] for r in results}) == 3
    for result in results:
        assert set(result) == {"id", "custom_id", "response", "error"}
        assert result["error"] is None
        assert result["response"]["status_code"] == 200
        assert result["response"]["body"]["model"] == "tiny"
    assert results[0]["response"]["body"]["object"] == "chat.completion"
    assert results[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert results[2]["response"]["body"]["usage"]["completion_tokens"] == 3
    report = json.loads(done.stdout)
    assert (report["lines"], report["resumed"], report["errors"]) == (3, 0, 0)
    used = [r["response"]["body"]["usage"]["completion_tokens"] for r in results]
    assert report["metrics"]["tokens"]["output"] == sum(used)
    assert not partial_path(out).exists()


@pytest.mark.parametrize(
    ("line", "status", "param"),
    [
        (chat("x", max_tokens=0), 400, "max_tokens"),
        (chat("x", no_such_field=1), 400, "no_such_field"),
        (chat("x", model="other"), 404, "model"),
        (chat("x", stream=True), 400, "stream"),
        (chat("x", messages=[]), 400, "messages"),
        (completion("x", ""), 400, "prompt"),
        (completion("x", "long " * 3000), 400, "prompt"),
        (completion("x") | {"method": "GET"}, 400, "method"),
        (completion("x") | {"url": "/v1/embeddings"}, 400, "url"),
        (completion("x") | {"body": [1]}, 400, None),
        ({"custom_id": "x"}, 400, "method"),
    ],
)
def test_what_is_wrong_with_a_line_is_its_result(
    model: Path, tmp_path: Path, line: dict[str, Any], status: int, param: str | None
) -> None:
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [completion("good"), line, chat("fine")])
    done = batch(model, source, out)
    assert done.returncode == 0, done.stderr
    assert "1 errors" in done.stderr
    good, bad, fine = read(out)
    assert good["response"]["status_code"] == fine["response"]["status_code"] == 200
    assert bad["response"]["status_code"] == status
    assert bad["response"]["body"]["error"]["param"] == param
    assert bad["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"custom_id": "a"}\n{"custom_id": "b"}\n\n{"custom_id": "a"}\n',
            "line 4: custom_id 'a' is that of line 1",
        ),
        ('{"custom_id": "a"}\n{"custom', "line 2: not valid JSON"),
        ("[1]\n", "line 1: a line must be a JSON object"),
        ('{"method": "POST"}\n', "line 1: custom_id must be"),
        ('{"custom_id": 5}\n', "line 1: custom_id must be"),
        ('{"custom_id": ""}\n', "line 1: custom_id must be"),
        ('{"custom_id": "a", "customid": 1}\n', "unknown field 'customid'"),
        ('{"custom_id": "a", "priority": "high"}\n', "priority must be an integer"),
        ("[" * 100000 + "\n", "line 1: not valid JSON"),
    ],
)
def test_a_file_whose_lines_cannot_be_told_apart_is_refused_whole(
    model: Path, tmp_path: Path, text: str, said: str
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(text)
    done = batch(model, source, out)
    assert done.returncode == 1
    assert said in done.stderr
    assert not out.exists()
    assert not partial_path(out).exists()


def test_a_finished_batch_is_left_alone_and_another_file_is_not_overwritten(
    model: Path, tmp_path: Path
) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", mixed(10)), tmp_path / "out.jsonl"
    assert batch(model, source, out).returncode == 0
    before = out.read_bytes()
    again = batch(model, source, out)
    assert (again.returncode, out.read_bytes()) == (0, before)
    assert "nothing to do" in again.stderr
    other = write_lines(tmp_path / "other.jsonl", mixed(10, seed=1))
    backend = batch(model, source, out, "--backend", "reference-quantized")
    for changed in (batch(model, other, out), batch(model, source, out, "--precise"), backend):
        assert changed.returncode == 1
        assert "is not the output of" in changed.stderr
        assert out.read_bytes() == before
    assert batch(model, source, tmp_path / "none" / "out").returncode == 1
    assert batch(model, source, source).returncode == 2


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_output(model: Path, tmp_path: Path, device: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    done = batch(model, source, Path(device))
    assert (done.returncode, done.stderr) == (
        1,
        f"spola: error: {device}: is not a regular file; choose another output\n",
    )


def test_an_empty_input_gives_an_empty_output(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert batch(model, write_lines(tmp_path / "in.jsonl", []), out).returncode == 0
    assert out.read_bytes() == b""


def test_it_goes_on_from_every_prefix_of_its_journal(model: Path, tmp_path: Path) -> None:
    """The journal cut off anywhere, also inside a line: the output is that of an uninterrupted run."""
    source, out = write_lines(tmp_path / "in.jsonl", mixed(12, tokens=5)), tmp_path / "out.jsonl"
    assert batch(model, source, out).returncode == 0
    whole = out.read_bytes()
    for cut in range(0, len(whole), len(whole) // 9):
        out.unlink()
        partial_path(out).write_bytes(whole[:cut])
        done = batch(model, source, out)
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() == whole
        kept = whole[:cut].count(b"\n")
        assert f"{kept} of them done before" in done.stderr
    # Killed between the last two steps: both files are there.
    partial_path(out).write_bytes(whole)
    assert batch(model, source, out).returncode == 0
    assert out.read_bytes() == whole


def test_results_of_another_input_are_not_mixed_in(model: Path, tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", mixed(5)), tmp_path / "out.jsonl"
    assert batch(model, source, out).returncode == 0
    results = out.read_bytes()
    out.rename(partial_path(out))
    changed = mixed(5)
    changed[0]["body"]["max_tokens"] = 29
    write_lines(source, changed)
    done = batch(model, source, out)
    assert done.returncode == 1
    assert "of another input, model or options" in done.stderr
    assert partial_path(out).read_bytes() == results


def test_an_engine_that_fails_loses_nothing_that_was_done(model: Path, tmp_path: Path) -> None:
    """The end of the engine is no line's result; what was done before is kept."""
    source, out = write_lines(tmp_path / "in.jsonl", mixed(30, tokens=6)), tmp_path / "out.jsonl"
    assert batch(model, source, out).returncode == 0
    whole = out.read_bytes()
    out.unlink()

    runner = Parrot()
    service = build_service(str(model), Options(backend="null", max_seqs=2), runner=runner)
    runner._script = None
    steps = iter(range(40))
    engine_step = service.loop._engine.step

    def broken(now: float, meanwhile: Any) -> Any:
        assert next(steps, None) is not None, "no more steps"
        return engine_step(now, meanwhile)

    service.loop._engine.step = broken
    with (
        BatchInput(source, batch_salt(service, "tiny")) as lines,
        pytest.raises(Exception, match="no more steps"),
    ):
        run_batch(service, "tiny", lines, out)
    service.close()
    kept = partial_path(out).read_bytes().count(b"\n")
    assert 0 < kept < 30
    done = batch(model, source, out)
    assert f"{kept} of them done before" in done.stderr
    assert out.read_bytes() == whole


def test_a_backend_error_is_the_result_of_its_line(model: Path, tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion("a")]), tmp_path / "out.jsonl"
    runner = Parrot()
    runner.broken = "no more memory"
    service = build_service(str(model), Options(backend="null"), runner=runner)
    with BatchInput(source, batch_salt(service, "tiny")) as lines:
        tally = run_batch(service, "tiny", lines, out)
    service.close()
    assert tally.errors == 1
    response = read(out)[0]["response"]
    assert response["status_code"] == 500
    assert "no more memory" in response["body"]["error"]["message"]


def test_better_priorities_run_first(model: Path, tmp_path: Path) -> None:
    lines = [completion(str(i)) | {"priority": i % 3} for i in range(60)]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    service = build_service(str(model), Options(backend="null", max_seqs=1))
    order: list[int] = []
    submit = service.submit

    def noted(*args, priority, **more):
        order.append(priority)
        return submit(*args, priority=priority, **more)

    service.submit = noted
    with BatchInput(source, batch_salt(service, "tiny")) as entries:
        run_batch(service, "tiny", entries, out)
    service.close()
    assert order == sorted(order)
    assert [r["custom_id"] for r in read(out)] == [str(i) for i in range(60)]


def test_what_changes_the_bits_of_answers_changes_the_fingerprint(model: Path) -> None:
    found = []
    kinds = ({}, {"precise": True}, {"kv_dtype": "f32"}, {"backend": "reference-quantized"}, {"threads": 1})
    for more in kinds:
        service = build_service(str(model), Options(**{"backend": "null", **more}))
        found.append(fingerprint(service))
        service.close()
    assert len(set(found)) == 4
    assert found[-1] == found[0]
