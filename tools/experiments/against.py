"""spola and llama-server on the same file, the same threads and the same requests, one after the other.

``run`` starts each server in turn, drives it over HTTP with ``bench serve``'s load generator and adds a row
to a store, ``--repeat`` times with new requests each; it may be run again, in short pieces. Parts, each for
both servers:

- shared16: 16 clients, 64 requests, prompts of 200 to 400 tokens (150 of them the same), answers of 64-128
- alone16: the same without a shared beginning; shared4, alone4, shared1, alone1: 4 clients or one
- long: 4 clients decode when a prompt of 6,000 tokens comes, and half a second later a short one

``prefix`` is for spola alone: the same prompt of 2,000 tokens again and again; its answers must be equal.
``report`` makes medians, with the lowest and the highest, and a drawing of a store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spola.bench.exchange import Call, Sample, ask
from spola.bench.figures import figures
from spola.bench.http import Pool, Target
from spola.bench.serve import Load, calls_of, drive
from spola.charts import Page
from spola.workload import Item, Mix

PARTS = ("shared16", "alone16", "shared4", "alone4", "shared1", "alone1", "long", "prefix")
SERVERS = ("spola", "llama-server")
VOCAB = 40_000  # prompts are random ids below it
LONG = 6000
LENGTH = {"long": 8000, "prefix": 4096}


def command(server: str, args: argparse.Namespace, port: int, length: int, seats: int) -> list[str]:
    threads = str(args.threads)
    if server == "spola":
        spola = [sys.executable, "-m", "spola", "serve", "-m", args.model, "--port", str(port)]
        spola += ["--served-model-name", "model"]
        return [*spola, "--threads", threads, "--max-seqs", str(seats), "--max-model-len", str(length)]
    size = ["-np", str(seats), "-c", str(seats * length), "-t", threads, "-tb", threads]
    return [args.llama_server, "-m", args.model, "--port", str(port), *size]


@contextmanager
def running(server: str, args: argparse.Namespace, length: int, seats: int) -> Iterator[Target]:
    """``server`` while it takes requests."""
    port = random.randrange(20_000, 40_000)
    process = subprocess.Popen(
        command(server, args, port, length, seats), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{server} ended with {process.returncode}") from None
                time.sleep(0.1)
        yield Target(f"{url}/v1")
    finally:
        process.terminate()
        process.wait()


def mix(part: str, count: int, seed: int) -> Mix:
    rng = random.Random(f"{part[:-2] if part[-2].isdigit() else part[:-1]} {seed}")
    shared = 150 if part.startswith("shared") else 0
    items = [Item(rng.randint(200, 400), rng.randint(64, 128), shared) for _ in range(count)]
    return Mix(tuple(items), part)


async def load(target: Target, part: str, seed: int) -> dict[str, Any]:
    clients = int("".join(c for c in part if c.isdigit()))
    count = {16: 64, 4: 16, 1: 6}[clients]
    calls = calls_of(mix(part, count, seed), "model", endpoint="completions", vocab=VOCAB)
    found = figures(await drive(target, calls, Load(None, clients, warmup=0)))
    keep = ("requests", "failed", "duration_s", "output_tok_s", "ttft_ms", "tpot_ms", "itl_ms", "latency_ms")
    return {name: found[name] for name in keep}


def completion(prompt: list[int], tokens: int, **fields: Any) -> Call:
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
    return Call("/completions", json.dumps(body).encode())


def a_word(model: str) -> int:
    """The id of a token that is a word."""
    spola = [sys.executable, "-m", "spola", "tokenize", " the", "--no-bos", "--json", "-m", model]
    return int(json.loads(subprocess.run(spola, check=True, capture_output=True).stdout)["ids"][-1])


async def long_prompt(target: Target, seed: int, word: int) -> dict[str, Any]:
    """The longest gap of four running answers after a long prompt has come, and when it is answered.

    The four say nothing but ``word``: a token that is half a character gives no event, and would look
    like a step that took twice as long.
    """
    rng = random.Random(seed)

    def ids(n: int) -> list[int]:
        return [rng.randrange(100, VOCAB) for _ in range(n)]

    pool = Pool(target, 600)
    try:
        now = time.perf_counter
        calls = [completion(ids(40), 700, logit_bias={str(word): 100}) for _ in range(4)]
        runs = [asyncio.create_task(ask(pool, call, now())) for call in calls]
        await asyncio.sleep(2.0)
        begin = now()
        late = asyncio.create_task(ask(pool, completion(ids(LONG), 8), begin))
        await asyncio.sleep(0.5)
        short = await ask(pool, completion(ids(32), 8), now())
        long: Sample = await late
        answered = long.events[0]
        streams = [await run for run in runs]
    finally:
        pool.close()
    failed = [s.error for s in (*streams, short, long) if s.error]
    if failed:
        raise SystemExit(failed[0])
    gaps = [
        b - a
        for s in streams
        for a, b in zip(s.events, s.events[1:], strict=False)
        if b > begin and a < answered
    ]
    before = [b - a for s in streams for a, b in zip(s.events, s.events[1:], strict=False) if b < begin]
    return {
        "longest_gap_ms": 1e3 * max(gaps),
        "gap_p50_ms": 1e3 * statistics.median(gaps),
        "tokens_without_event": sum(s.n - len(s.events) for s in streams),
        "itl_before_ms": 1e3 * statistics.median(before),
        "short_ttft_ms": 1e3 * short.ttft_s,
        "short_latency_ms": 1e3 * short.latency_s,
        "long_ttft_ms": 1e3 * long.ttft_s,
        "tokens_meanwhile": len(gaps),
        "streams_outlast": min(s.end for s in streams) > answered,
    }


async def twice(target: Target, seed: int) -> dict[str, Any]:
    """Time to the first token of a prompt of 2,000 tokens, cold and warm; whether the answers are equal."""
    rng = random.Random(seed)
    pool = Pool(target, 600)
    try:
        call = completion([rng.randrange(100, VOCAB) for _ in range(2000)], 16)
        cold = await ask(pool, call, time.perf_counter())
        warm = [await ask(pool, call, time.perf_counter()) for _ in range(5)]
    finally:
        pool.close()
    failed = [sample.error for sample in (cold, *warm) if sample.error]
    if failed:
        raise SystemExit(failed[0])
    ttft = statistics.median(sample.ttft_s for sample in warm)
    return {
        "cold_ttft_ms": 1e3 * cold.ttft_s,
        "warm_ttft_ms": 1e3 * ttft,
        "cached_tokens": min(sample.cached or 0 for sample in warm),
        "same_text": bool(cold.text) and {sample.text for sample in warm} == {cold.text},
    }


def measure(part: str, server: str, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    with running(server, args, LENGTH.get(part, 640), 8 if part in LENGTH else 16) as target:
        if part == "long":
            found = asyncio.run(long_prompt(target, seed, a_word(args.model)))
        elif part == "prefix":
            found = asyncio.run(twice(target, seed))
        else:
            found = asyncio.run(load(target, part, seed))
    return {"part": part, "server": server, "seed": seed, "load": os.getloadavg()[0], **found}


def run(args: argparse.Namespace) -> None:
    done = read(args.store) if args.store.exists() else []
    with args.store.open("a", encoding="utf-8") as file:
        for part in args.parts * args.repeat:
            seed = args.seed + len({row["seed"] for row in done if row["part"] == part})
            for server in SERVERS[: 1 if part == "prefix" else 2]:
                row = measure(part, server, args, seed)
                done.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(json.dumps(row), file=sys.stderr)


def read(store: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]


def values(rows: list[dict[str, Any]], *path: str) -> list[float]:
    """What each of ``rows`` has at ``path``."""
    found = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value[name]
        found.append(float(value))
    return found


def median(rows: list[dict[str, Any]], *path: str) -> float:
    return statistics.median(values(rows, *path))


def report(args: argparse.Namespace) -> None:
    rows = read(args.store)
    out: dict[str, Any] = {}
    page = Page("spola and llama-server: the same file, threads and requests")
    for part in PARTS:
        of = {s: [r for r in rows if r["part"] == part and r["server"] == s] for s in SERVERS}
        if not of["spola"]:
            continue
        if part == "prefix":
            cold, warm = (median(of["spola"], f"{name}_ttft_ms") for name in ("cold", "warm"))
            out[part] = {
                "runs": len(of["spola"]),
                "cold_ttft_ms": cold,
                "warm_ttft_ms": warm,
                "ratio": cold / warm,
                "same_text": all(row.get("same_text") for row in of["spola"]),
            }
            continue
        wanted = [("longest_gap_ms",), ("short_ttft_ms",), ("long_ttft_ms",), ("itl_before_ms",)]
        if part != "long":
            wanted = [
                ("output_tok_s",),
                ("ttft_ms", "p50"),
                ("ttft_ms", "p95"),
                ("tpot_ms", "p50"),
                ("itl_ms", "p95"),
            ]
        found = {".".join(path): {s: median(of[s], *path) for s in SERVERS if of[s]} for path in wanted}
        spread = {
            ".".join(path): {s: [min(v), max(v)] for s in SERVERS if (v := values(of[s], *path))}
            for path in wanted
        }
        out[part] = {"runs": len(of["spola"]), **found, "spread": spread}
        for name, by_server in found.items():
            if name in ("output_tok_s", "ttft_ms.p95", "longest_gap_ms"):
                page.bars(part, list(by_server), list(by_server.values()), name)
    args.store.with_suffix(".report.json").write_text(json.dumps(out, indent=2) + "\n")
    args.store.with_suffix(".svg").write_text(page.render())
    print(json.dumps(out, indent=2))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--store", type=Path, default=Path("against.jsonl"))
    parser.add_argument("--llama-server", metavar="PATH", default="llama-server")
    parser.add_argument("-m", "--model", help="a GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="runs of each part, server by server"
    )
    args = parser.parse_args(argv)
    if args.what == "report":
        report(args)
        return 0
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown or args.model is None:
        parser.error(f"{unknown[0]} is none of {', '.join(PARTS)}" if unknown else "-m is needed")
    if args.repeat < 1:
        parser.error(f"--repeat must be at least 1, not {args.repeat}")
    run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
