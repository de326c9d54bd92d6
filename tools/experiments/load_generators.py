"""``spola bench serve`` beside another load generator, GuideLLM, on the same server at the same time.

    python tools/experiments/load_generators.py --guidellm /venv/bin/guidellm [-m MODEL] [--rounds 5]

GuideLLM (https://github.com/vllm-project/guidellm, tried with 0.8) belongs in an environment of its own, as
it brings torch. Without it this says so and measures nothing. In each round both send the same prompts with
the same lengths of answers, each from ``--clients`` clients in a closed loop, and both talk through a relay
(``witness``) that times each request by spola's definitions: what the client should have seen at least.

- TTFT, and TPOT (GuideLLM calls that ITL): p50 and p95 over requests, computed here in the same way from each
  program's own samples, and those that the relay saw for the same requests.
- what each program prints itself, where the definition is another one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from started import started
from witness import Witness, witnessed

from spola.bench.exchange import Sample
from spola.bench.figures import gaps
from spola.core.quantiles import describe
from spola.workload.text import WORDS

METRICS = ("ttft_ms", "tpot_ms", "latency_ms")
NAMES = {"ttft_ms": "time_to_first_token_ms", "tpot_ms": "inter_token_latency_ms"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
Figures = dict[str, dict[str, float]]


def dataset(path: Path, requests: int, prompt: int, output: int, seed: int) -> None:
    """The same requests for both, each under the name that its reader knows."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(requests):
            row = {"prompt": " ".join(rng.choices(WORDS, k=prompt)), "output_tokens": output}
            file.write(json.dumps(row | {"output_tokens_count": output}) + "\n")


def guidellm(asked: argparse.Namespace, url: str, data: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        asked.guidellm,
        "run",
        "--backend",
        f"kind=openai_http,target={url},model={asked.model}",
        "--profile",
        f"kind=concurrent,streams={asked.clients}",
        "--constraint",
        f"kind=max_requests,count={asked.requests}",
        "--data",
        f"kind=json_file,path={data}",
        "--output",
        f"kind=json,path={out}",
        "--disable-console-interactive",
    ]
    log = out.with_suffix(".log").open("w")
    with log:
        env = {**os.environ, **OFFLINE}
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=out.parent, text=True)


def bench_serve(asked: argparse.Namespace, url: str, data: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "spola", "bench", "serve", "--url", url, "--dataset", str(data)]
    command += ["--requests", str(asked.requests), "--concurrency", str(asked.clients), "--warmup", "0"]
    done = subprocess.run([*command, "--model", asked.model, "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)


def of_samples(samples: list[Sample]) -> dict[str, list[float]]:
    """Values of each metric in milliseconds, one for each request, in the order they were sent."""
    good = [sample for sample in samples if not sample.error]
    return {
        "ttft_ms": [1e3 * sample.ttft_s for sample in good],
        "tpot_ms": [1e3 * (sample.tpot_s or 0.0) for sample in good],
        "latency_ms": [1e3 * sample.latency_s for sample in good],
        "itl_ms": [1e3 * gap for sample in good for gap in gaps(sample)],
    }


def of_bench(document: dict[str, Any]) -> dict[str, list[float]]:
    rows = sorted((row for row in document["samples"] if "error" not in row), key=lambda row: row["at_s"])
    return {name: [row[name] for row in rows] for name in METRICS}


def of_guidellm(document: dict[str, Any]) -> dict[str, list[float]]:
    """From GuideLLM's report, in its names; its latency ends with the connection's answer, in seconds."""
    benchmark = document["benchmarks"][0]
    rows = sorted(benchmark["requests"]["successful"], key=lambda row: row["request_start_time"])
    values = {name: [row[theirs] for row in rows] for name, theirs in NAMES.items()}
    return values | {"latency_ms": [1e3 * row["request_latency"] for row in rows]}


def printed(document: dict[str, Any]) -> dict[str, float]:
    """What GuideLLM itself prints: as its own time per output token, the first one and its wait included."""
    found = document["benchmarks"][0]["metrics"]
    return {
        "tpot_with_first_ms": found["time_per_output_token_ms"]["successful"]["mean"],
        "itl_ms": found["inter_token_latency_ms"]["successful"]["mean"],
        "output_tok_s": found["output_tokens_per_second"]["successful"]["mean"],
    }


def throughput(samples: list[Sample]) -> float:
    """Output tokens a second, from the first request to the last token."""
    good = [sample for sample in samples if not sample.error]
    return sum(sample.n for sample in good) / (max(s.end for s in good) - min(s.sent for s in good))


def side(mine: dict[str, list[float]], tok_s: float, seen: Witness) -> dict[str, Any]:
    """One client's figures beside the relay's of the same requests. ``added``: the median over requests of
    how much longer the client found each.
    """
    relay = of_samples(seen.samples)
    out: dict[str, Any] = {
        "requests": len(mine["ttft_ms"]),
        "seen": len(relay["ttft_ms"]),
        "output_tok_s": {"told": tok_s, "seen": throughput(seen.samples)},
        "relay_itl_ms": describe(relay["itl_ms"]),
    }
    for name in METRICS:
        out[name] = {"told": describe(mine[name]), "seen": describe(relay[name])}
        if len(mine[name]) == len(relay[name]):
            out[name]["added"] = statistics.median(a - b for a, b in zip(mine[name], relay[name]))
    return out


def one_round(asked: argparse.Namespace, url: str, folder: Path, seed: int) -> dict[str, Any]:
    data, out = folder / f"requests{seed}.jsonl", folder / f"guidellm{seed}.json"
    dataset(data, asked.requests, asked.prompt, asked.output, seed)
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    with witnessed(parts.hostname, parts.port, 2) as (left, right):
        other = guidellm(asked, left.url, data, out)
        while not left.samples and other.poll() is None:
            time.sleep(0.01)
        mine = bench_serve(asked, right.url, data)
        if other.wait() or not out.exists():
            raise SystemExit(f"GuideLLM failed: {out.with_suffix('.log').read_text()[-2000:]}")
        theirs = json.loads(out.read_text())
    told = printed(theirs)
    return {
        "spola": side(of_bench(mine), mine["output_tok_s"], right) | {"itl_ms": mine["itl_ms"]},
        "guidellm": side(of_guidellm(theirs), told["output_tok_s"], left) | {"printed": told},
    }


def cell(values: list[float], sign: str = "") -> str:
    """The median, the lowest and the highest."""
    median, low, high = (f"{v:{sign}.2f}" for v in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})"


def table(rounds: list[dict[str, Any]]) -> list[str]:
    """Medians over the rounds, with the lowest and the highest, as the rows of a table in Markdown."""
    lines = [
        "| | bench serve | relay, the same requests | GuideLLM | relay, the same requests |",
        "|---|---|---|---|---|",
    ]
    pairs = [(program, whose) for program in ("spola", "guidellm") for whose in ("told", "seen")]
    for name in METRICS:
        title = name.removesuffix("_ms").upper()
        for quantile in ("p50", "p95"):
            cells = [cell([r[program][name][whose][quantile] for r in rounds]) for program, whose in pairs]
            lines.append(f"| {title} {quantile}, ms | {' | '.join(cells)} |")
        added = [
            cell([r[program][name].get("added", math.nan) for r in rounds], "+")
            for program in ("spola", "guidellm")
        ]
        lines.append(f"| {title} of a request, ms more than the relay | {added[0]} | | {added[1]} | |")
    cells = [cell([r[program]["output_tok_s"][whose] for r in rounds]) for program, whose in pairs]
    lines.append(f"| output tokens/s | {' | '.join(cells)} |")
    printed = [
        cell([r["guidellm"]["printed"][name] for r in rounds]) for name in ("itl_ms", "tpot_with_first_ms")
    ]
    lines.append(f"GuideLLM prints an ITL of {printed[0]} ms and a TPOT of {printed[1]} ms (means).")
    return lines


def warm(url: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "a b c"}], "max_tokens": 32}
    for _ in range(3):
        with urllib.request.urlopen(f"{url}/chat/completions", json.dumps(body).encode(), timeout=60):
            pass


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--guidellm", default="guidellm", help="the program; default: on the PATH")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2, help="of each of the two")
    parser.add_argument("--requests", type=int, default=24, help="of each of the two, in a round")
    parser.add_argument("--prompt", type=int, default=100, help="words of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=1, help="of the server; the rest is for the clients")
    parser.add_argument("-o", "--out", type=Path, help="all figures as JSON")
    asked = parser.parse_args(given)
    if shutil.which(asked.guidellm) is None:
        print(f"skipped: no {asked.guidellm} here; pip install guidellm in an environment of its own")
        return 0
    rounds = []
    # Both send the same prompts: without a prefix cache the second finds nothing of the first.
    options = ["--no-prefix-cache", "--max-model-len", "1024", "--threads", str(asked.threads)]
    options += ["--max-seqs", str(4 * asked.clients)]
    with tempfile.TemporaryDirectory() as folder, started(asked.model, *options) as url:
        warm(url, asked.model)
        for seed in range(asked.rounds):
            rounds.append(one_round(asked, url, Path(folder), seed))
            if asked.out:
                asked.out.write_text(json.dumps(rounds, indent=1))
    print("\n".join(table(rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
