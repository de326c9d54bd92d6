"""The command line over the null backend: exit codes, JSON keys, one-line errors, results alone on stdout."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from spola.cli.app import COMMANDS, main
from spola.core.dtype import BY_NAME
from spola.formats.gguf_write import NewTensor, write_gguf
from support.cli import spola
from support.service import tiny_file
from support.tiny import Tiny, TinyModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_file(tmp_path_factory.mktemp("model")))


def test_help_lists_every_command_without_importing_them() -> None:
    code = """
import sys
from spola.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = ("tokenizers", "starlette", "numpy", "jinja2")
    print(sorted(name for name in sys.modules if name.split(".")[0] in heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = spola(name, "-h")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert main.get_command(None, name).name == name


def test_run_answers_and_keeps_figures_off_stdout(model: str) -> None:
    done = spola("run", "-m", model, "--backend", "null", "-n", "5", "--raw", "the")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert "generated tokens" in done.stderr
    assert "generated tokens" not in done.stdout


def test_run_json_has_the_keys_of_the_contract(model: str) -> None:
    done = spola("run", "-m", model, "--backend", "null", "-n", "5", "--json", stdin="from a pipe\n")
    found = json.loads(done.stdout)
    assert set(found) == {"text", "token_ids", "finish_reason", "usage", "timing"}
    assert set(found["usage"]) == {"prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(found["timing"]) == {"ttft_s", "tpot_s", "latency_s", "prefill_tok_s", "decode_tok_s"}
    assert len(found["token_ids"]) == found["usage"]["completion_tokens"] <= 5


def test_run_is_repeatable_by_seed(model: str) -> None:
    def ids(*more: str) -> list[int]:
        args = (
            "run",
            "-m",
            model,
            "--backend",
            "null",
            "-n",
            "9",
            "--json",
            "--temperature",
            "1",
            *more,
            "hi",
        )
        return json.loads(spola(*args).stdout)["token_ids"]

    assert ids("--seed", "3") == ids("--seed", "3") != ids("--seed", "4")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "-m", "nothing.gguf", "hi"], 1, "no such file"),
        (["run", "--raw", "--system", "x", "hi"], 2, "--system"),
        (["run", "--raw", "--chat-template", "MODEL", "hi"], 2, "--chat-template"),
        (["run", "--no-such-option", "hi"], 2, "--no-such-option"),
        (["nonsense"], 2, "nonsense"),
        (["run", "-m", "MODEL", "--backend", "null"], 2, "stdin is empty"),
        (["run", "-m", "MODEL", "--backend", "nonsense", "hi"], 1, "unknown backend"),
        (["run", "-m", "MODEL", "--backend", "null", "--kv-dtype", "q1", "hi"], 1, "kv_dtype"),
        (["run", "-m", "MODEL", "--backend", "null", "--kv-memory", "much", "hi"], 2, "--kv-memory"),
        (["run", "-m", "MODEL", "--backend", "null", "--max-model-len", "9999999", "hi"], 1, "trained for"),
        (["run", "-m", "MODEL", "--backend", "null", "--temperature", "nan", "hi"], 2, "temperature"),
        (["run", "-m", "MODEL", "--backend", "null", "--top-p", "2", "hi"], 2, "top_p"),
        (["run", "-m", "MODEL", "--backend", "null", "--max-model-len", "4", "a longer prompt"], 1, "4"),
        (["run", "-m", "MODEL", "--backend", "null", "--raw", ""], 1, "the prompt is empty"),
        (["serve", "--host", "0.0.0.0", "-m", "MODEL"], 1, "--no-auth"),
        (["pull", "llama"], 1, "is no short name"),
        (["eval", "MODEL", "--max-model-len", "5"], 2, "--ctx"),
        (["eval", "MODEL", "--speculate", "ngram"], 2, "--speculate"),
        (["eval", "MODEL", "--chat-template", "MODEL"], 2, "--chat-template"),
        (["eval", "MODEL", "--backend", "null"], 1, "one window needs 512"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(model: str, args: list[str], code: int, said: str) -> None:
    done = spola(*(model if arg == "MODEL" else arg for arg in args))
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    if code == 1:
        assert [line for line in done.stderr.splitlines() if "error" in line] == done.stderr.splitlines()[-1:]


def test_stdin_that_is_no_utf8(model: str) -> None:
    done = spola("run", "-m", model, "--backend", "null", stdin=b"ab\xff")
    assert done.returncode == 1
    assert "not valid UTF-8 at byte 2" in done.stderr


def test_an_argument_that_is_no_utf8(model: str) -> None:
    argv = [sys.executable, "-m", "spola", "tokenize", "-m", model, b"ab\xff"]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"surrogate" in done.stderr


@pytest.mark.parametrize("module", ["click", "spola.cli.app", "spola.cli.flags"])
def test_an_interrupt_while_modules_are_imported_is_quiet(module: str) -> None:
    program = f"""
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["spola", "flags"]
from spola.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in spola("run", "-m", "nothing.gguf", "hi", SPOLA_DEBUG="1").stderr


def test_a_chat_template_from_a_file(model: str, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}{{ messages[0].content }}")
    args = (
        "run",
        "-m",
        model,
        "--backend",
        "null",
        "-n",
        "1",
        "--json",
        "--chat-template",
        str(template),
        "abc",
    )
    assert json.loads(spola(*args).stdout)["usage"]["prompt_tokens"] == 6
    template.write_text("{% if %}")
    done = spola(*args)
    assert (done.returncode, done.stdout) == (1, "")
    assert "line 1" in done.stderr


def test_tokenize_takes_stdin_as_it_is_and_a_vocabulary_only_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_gguf(path, Tiny().metadata(), [])
    found = json.loads(spola("tokenize", "-m", str(path), "--json", stdin="he in\r\n<|im_end|>").stdout)
    assert set(found) == {"ids", "tokens", "n", "words", "tokens_per_word"}
    assert "".join(found["tokens"]) == "he in\r\n<|im_end|>"
    assert found["n"] == len(found["ids"]) == len(found["tokens"])
    assert found["words"] == 3
    special = json.loads(spola("tokenize", "-m", str(path), "--special", "--json", "<|im_end|>").stdout)
    assert special["n"] == 1
    empty = json.loads(spola("tokenize", "-m", str(path), "--json", "").stdout)
    assert (empty["ids"], empty["tokens_per_word"]) == ([], None)


def test_inspect_shows_the_model_and_what_is_unusual(model: str) -> None:
    found = json.loads(spola("inspect", model, "--json", "--tensors").stdout)
    assert found["architecture"] == "llama"
    assert found["runs"] is True
    assert found["model"]["layers"] == 2
    assert found["tokenizer"]["model"] == "gpt2"
    assert found["weights_bytes"] == sum(row["bytes"] for row in found["tensor_list"])
    assert any("tied" in line for line in found["unusual"])
    text = spola("inspect", model).stdout
    assert "runs           yes" in text


def test_inspect_of_a_file_that_cannot_run_says_why(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, {**Tiny().metadata(), "general.architecture": "nonsense"}, [])
    found = json.loads(spola("inspect", str(path), "--json").stdout)
    assert found["runs"] is False
    assert any("nonsense" in line for line in found["unusual"])


def test_flags_and_unknown_variables() -> None:
    done = spola("flags", "--json", SPOLA_CHECK="1", SPOLA_TYPO="x")
    found = json.loads(done.stdout)
    assert found["unknown"] == ["SPOLA_TYPO"]
    assert {row["name"]: row["value"] for row in found["flags"]}["SPOLA_CHECK"] is True
    assert "SPOLA_TYPO" in done.stderr
    assert spola("flags", SPOLA_CHECK="maybe").returncode == 1


def test_eval_of_a_uniform_model_is_what_arithmetic_says(model: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 40)
    args = ("eval", model, "--backend", "null", "--text", str(text), "--ctx", "32", "--chunks", "3", "--json")
    found = json.loads(spola(*args).stdout)
    assert set(found) == {"ppl", "stderr", "mean_kl", "kl_stderr", "top1", "tokens"}
    assert found["tokens"] == 3 * 15
    # The null backend gives one of 288 ids the logit 0 and the others -1; the text is hardly ever that one.
    least = math.exp(math.log(1 + 287 / math.e))
    assert least < found["ppl"] <= least * math.e * (1 + 1e-9)
    assert found["mean_kl"] is None
    same = json.loads(spola(*args, "--against", model).stdout)
    assert same["ppl"] == pytest.approx(found["ppl"], rel=1e-5)
    assert same["mean_kl"] == pytest.approx(0, abs=1e-6)
    assert same["top1"] == 1.0


def test_a_closed_pipe_is_quiet(model: str) -> None:
    command = f"{sys.executable} -m spola run -m {model} --backend null -n 400 --raw hi | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert len(done.stdout) == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_doctor_has_a_remedy_for_each_problem(tmp_path: Path) -> None:
    done = spola("doctor", "--quick", "--json", SPOLA_ISA="none-such")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert all(problem["remedy"] for problem in found["problems"])
    assert any("SPOLA_ISA" in problem["what"] for problem in found["problems"])
    assert {"versions", "backends", "processors", "memory", "models"} <= set(found)
    assert "SPOLA_ISA" in spola("doctor", "--quick", SPOLA_ISA="none-such").stdout


def in_shell(command: str, model: str) -> subprocess.CompletedProcess[str]:
    script = f'exec "$0" -m spola {command}'
    return subprocess.run(
        ["sh", "-c", script, sys.executable, model], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("redirection", "code", "out", "err"),
    [
        ("<&-", 2, "", "stdin is empty"),
        (">&- hi", 0, "", "generated tokens"),
        ("--json 2>&- hi", 0, "{", ""),
        (">/dev/full hi", 1, "", "spola: error: No space left on device"),
    ],
)
def test_streams_that_are_closed_or_full(model: str, redirection: str, code: int, out: str, err: str) -> None:
    done = in_shell(f'run -m "$1" --backend null -n 2 {redirection}', model)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert err in done.stderr
    if out:
        assert json.loads(done.stdout)["usage"]["completion_tokens"] <= 2  # and nothing but the document
    else:
        assert done.stdout == ""


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    hostile = TinyModel(Tiny())
    hostile.metadata["general.name"] = "a\x1b[31m\nruns yes"
    tensors = [
        NewTensor(info.gguf, BY_NAME[tensor.dtype], tensor.shape, tensor.data)
        for info, tensor in zip(hostile.infos, hostile.tensors, strict=True)
    ]
    extra = NewTensor("x\x1b]0;title\x07", BY_NAME["F32"], (4,), bytes(16))
    write_gguf(tmp_path / "hostile.gguf", hostile.metadata, [*tensors, extra])
    path = str(tmp_path / "hostile.gguf")
    for done in (
        spola("inspect", path, "--tensors"),
        spola("run", "-m", path, "--backend", "null", "-n", "1", "hi"),
    ):
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr
        assert r"x\x1b]0;title\x07" in done.stdout + done.stderr
    shown = spola("inspect", path).stdout
    assert r"a\x1b[31m\nruns yes" in shown


def test_a_chat_template_that_is_no_text_or_has_no_end_is_refused(model: str, tmp_path: Path) -> None:
    (tmp_path / "bytes.jinja").write_bytes(b"ab\xff")
    for path, said in ((tmp_path / "bytes.jinja", "not valid UTF-8 at byte 2"), ("/dev/zero", "more than")):
        done = spola("run", "-m", model, "--backend", "null", "--chat-template", str(path), "hi")
        assert done.returncode == 1
        assert f"--chat-template {path}: " in done.stderr
        assert said in done.stderr


def test_a_prompt_that_is_no_utf8(model: str) -> None:
    for args, said in ((["è\udcff"], "PROMPT is not"), (["hi", "--system", "è\udcff"], "--system is not")):
        done = spola("run", "-m", model, "--backend", "null", *args)
        assert done.returncode == 1
        assert f"{said} valid UTF-8 at byte 2" in done.stderr
