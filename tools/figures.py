"""Make the figures of docs/understanding by running the commands that its chapters show.

A figure is an image of a chapter, made from the ``sh`` block before it: each ``spola`` line is run with
``--json``, a line that ends with ``&`` is a server that runs until the block is done. What came out is kept
in figures/NAME.json with the commands, and drawn to figures/NAME.svg. ``--check`` runs nothing: it compares
both languages with each other, and the commands of the chapters with those that made the figures.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spola.charts import Page, Series

sys.path.insert(0, str(Path(__file__).resolve().parent))

from vocabularies import ROOT, VOCABULARIES, lay_out

BOOK = ROOT / "docs" / "understanding"
FIGURES = BOOK / "figures"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.S | re.M)
IMAGE = re.compile(r"!\[[^\]]*\]\(\.\./figures/([\w-]+)\.svg\)")
SERVER_S = 60.0
_FOLDER = VOCABULARIES.relative_to(ROOT).as_posix()

Docs = list[dict[str, Any]]


@dataclass(frozen=True)
class Chapter:
    """``blocks``: the commands of each ``sh`` block; ``figures``: name -> the commands that make it."""

    name: str
    headings: int
    blocks: list[list[str]]
    figures: dict[str, list[str]]


def chapter(path: Path) -> Chapter:
    text = path.read_text(encoding="utf-8")
    blocks = [(match.end(), match[1].strip().splitlines()) for match in BLOCK.finditer(text)]
    figures = {}
    for image in IMAGE.finditer(text):
        before = [commands for end, commands in blocks if end <= image.start()]
        if not before:
            raise ValueError(f"{path.name}: the figure {image[1]} has no commands before it")
        figures[image[1]] = before[-1]
    return Chapter(path.stem, len(re.findall(r"^#+ ", text, re.M)), [c for _, c in blocks], figures)


def chapters(lang: str) -> list[Chapter]:
    return [chapter(path) for path in sorted((BOOK / lang).glob("[0-9]*.md"))]


def run(commands: list[str], *, busy: bool = False) -> Docs:
    """The JSON documents of ``commands``, run where the project is.

    That of a command whose vocabulary is not installed is empty, and stderr says how to have it.
    ``busy`` also takes a benchmark that was faster than the limits measured a moment before: on a shared
    machine both move.
    """
    found: Docs = []
    missing = lay_out(VOCABULARIES)
    servers = [command for command in commands if command.endswith("&")]
    with _serving(servers):
        for command in commands:
            lacking = next((name for name in missing if f"{_FOLDER}/{name} " in command), None)
            if lacking is not None:
                print(f"left out: {command}: {missing[lacking]}", file=sys.stderr)
                found.append({})
            elif command not in servers:
                found.append(_json(command, busy))
    return found


def _json(command: str, busy: bool) -> dict[str, Any]:
    """One command; ``< FILE`` is its stdin. Raises CalledProcessError when it fails."""
    text, _, source = command.partition(" < ")
    program, *arguments = shlex.split(text)
    if program != "spola":
        raise ValueError(f"a figure is made by spola, not by {program}")
    stdin = (ROOT / source).read_bytes() if source else None
    call = [sys.executable, "-m", "spola", *arguments, "--json"]
    done = subprocess.run(call, cwd=ROOT, input=stdin, stdout=subprocess.PIPE)
    if not (busy and done.returncode == 1 and done.stdout):
        done.check_returncode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextmanager
def _serving(commands: list[str]) -> Iterator[None]:
    """Run servers until the end; each is waited for at its ``--port``."""
    running = []
    try:
        for command in commands:
            arguments = shlex.split(command.rstrip("& "))[1:]
            running.append(subprocess.Popen([sys.executable, "-m", "spola", *arguments], cwd=ROOT))
            _wait(int(arguments[arguments.index("--port") + 1]), running[-1])
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait(30)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SERVER_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"no server at port {port}")


def _kv_cache(docs: Docs) -> Page:
    page = Page("One token after the other")
    series = []
    for name, doc in zip(("with a KV cache", "without"), docs, strict=True):
        times = doc["decode"][0]["step_ms"]
        series.append(Series(name, [(doc["prefill"]["tokens"] + i, ms) for i, ms in enumerate(times)]))
    page.plot("Time of a token", series, "tokens before it", "ms")
    return page


def _tokens_per_word(docs: Docs) -> Page:
    page = Page("One text, two languages")
    names = [f"{name}\n{lang}" for name in ("SmolLM2", "Mistral v3", "Tekken") for lang in ("en", "it")]
    there = [(i, name, doc) for i, (name, doc) in enumerate(zip(names, docs, strict=True)) if doc]
    ratios = [doc["tokens_per_word"] for _, _, doc in there]
    languages = [i % 2 for i, _, _ in there]
    page.bars("Tokens per word", [name for _, name, _ in there], ratios, "tokens / words", colours=languages)
    return page


def _prefill_decode(docs: Docs) -> Page:
    page = Page("Prefill and decode")
    prefill = [(float(doc["prefill"]["tokens"]), doc["prefill"]["tok_s"]) for doc in docs]
    decode = [(x, doc["decode"][0]["tok_s"]) for (x, _), doc in zip(prefill, docs, strict=True)]
    series = [Series("prefill", prefill), Series("decode", decode)]
    page.plot("Speed", series, "tokens of the prompt", "tokens a second", log_x=True)
    return page


def _memory(docs: Docs) -> Page:
    page = Page("Weights once, KV cache for each request")
    weights = docs[0]["weights_bytes"]
    series = [Series("weights", [(0, weights / 1e9), (32, weights / 1e9)])]
    for doc, context in zip(docs, (2048, 8192), strict=True):
        size = doc["kv_bytes_per_token"] * context
        points = [(float(n), (weights + n * size) / 1e9) for n in range(0, 33, 4)]
        series.append(Series(f"and requests of {context} tokens", points))
    page.plot("Memory", series, "requests", "GB")
    return page


def _bandwidth(docs: Docs) -> Page:
    page = Page("Decode against the memory")
    points, limit = [], []
    for doc in docs[1:]:
        size = doc["weights_bytes"] / 1e6
        points.append((size, doc["decode"][0]["tok_s"]))
        limit.append((size, doc["weights_gb_s"] * 1e3 / size))
    series = [Series("measured", points, "dots"), Series("bandwidth / bytes", sorted(limit))]
    page.plot("Decode", series, "MB of weights", "tokens a second")
    return page


def _batching(docs: Docs) -> Page:
    page = Page("Throughput against time per token")
    points = [
        (1e3 * row["batch"] / row["tok_s"], row["tok_s"], str(row["batch"])) for row in docs[0]["decode"]
    ]
    page.curve("Batches of 1 to 32", points, "time per token, ms", "tokens a second of all")
    return page


def _quantization(docs: Docs) -> Page:
    page = Page("What fewer bits cost")
    names = ["q4_0", "q4_k", "q6_k", "q8_0"]
    page.bars("Mean KL divergence", names, [doc["mean_kl"] for doc in docs[1:]], "nats")
    return page


def _latency(docs: Docs) -> Page:
    page = Page("Latency = TTFT + TPOT x (n - 1)")
    rows = [row for row in docs[0]["samples"] if row.get("tpot_ms") is not None]
    points = [(row["ttft_ms"] + row["tpot_ms"] * (row["tokens"] - 1), row["latency_ms"]) for row in rows]
    most = max(x for x, _ in points)
    series = [Series("requests", points, "dots"), Series("equal", [(0.0, 0.0), (most, most)])]
    page.plot("Each request", series, "TTFT + TPOT x (n - 1), ms", "latency, ms")
    return page


def _prefix_cache(docs: Docs) -> Page:
    page = Page("A shared prefix is computed once")
    times = [row["ttft_ms"] for row in docs[0]["samples"]]
    page.bars("TTFT", [str(i + 1) for i in range(len(times))], times, "ms, by request")
    return page


def _speculation(docs: Docs) -> Page:
    page = Page("Text that repeats")
    speeds = [doc["timing"]["decode_tok_s"] for doc in docs]
    page.bars("Decode", ["plain", "n-gram drafts"], speeds, "tokens a second")
    return page


DRAW: dict[str, Callable[[Docs], Page]] = {
    "kv-cache": _kv_cache,
    "tokens-per-word": _tokens_per_word,
    "prefill-decode": _prefill_decode,
    "memory": _memory,
    "bandwidth": _bandwidth,
    "batching": _batching,
    "quantization": _quantization,
    "latency": _latency,
    "prefix-cache": _prefix_cache,
    "speculation": _speculation,
}


def make(name: str, commands: list[str]) -> None:
    print(f"{name}: {'; '.join(commands)}", file=sys.stderr)
    docs = run(commands, busy=True)
    page = DRAW[name](docs)
    FIGURES.mkdir(exist_ok=True)
    kept = {"commands": commands, "results": docs}
    (FIGURES / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (FIGURES / f"{name}.svg").write_text(page.render(), encoding="utf-8")


def problems() -> list[str]:
    """What is not in step: the languages, or figures and the commands that made them."""
    found = []
    english, italian = ({one.name: one for one in chapters(lang)} for lang in ("en", "it"))
    if english.keys() != italian.keys():
        return [f"not in both languages: {', '.join(sorted(english.keys() ^ italian.keys()))}"]
    drawn = set()
    for name, one in english.items():
        other = italian[name]
        if (one.headings, one.blocks, one.figures) != (other.headings, other.blocks, other.figures):
            found.append(f"{name}: headings, commands or figures differ between en and it")
        for figure, commands in one.figures.items():
            drawn.add(figure)
            kept = FIGURES / f"{figure}.json"
            if figure not in DRAW:
                found.append(f"{name}: nobody draws {figure}")
            elif not kept.exists() or json.loads(kept.read_text(encoding="utf-8"))["commands"] != commands:
                found.append(f"{name}: {figure} was made by other commands; run make figures")
            elif DRAW[figure](json.loads(kept.read_text(encoding="utf-8"))["results"]).render() != (
                FIGURES / f"{figure}.svg"
            ).read_text(encoding="utf-8"):
                found.append(f"{name}: {figure}.svg is not drawn from {figure}.json; run make figures")
    found += [f"{figure} is in no chapter" for figure in sorted(DRAW.keys() - drawn)]
    return found


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        found = problems()
        for problem in found:
            print(problem, file=sys.stderr)
        return int(bool(found))
    for one in chapters("en"):
        for name, commands in one.figures.items():
            if not arguments or name in arguments:
                make(name, commands)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
