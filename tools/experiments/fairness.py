"""How much one key's flood delays another key, over HTTP on a real model.

    python tools/experiments/fairness.py [-m MODEL] [--runs 1] [--seats 16] [--flood 200] [--light 30]

The bar: p95 TTFT of the light key while the heavy key floods is at most 1.5 times its p95 TTFT while the
heavy key runs a closed loop on half of the seats (``--max-seqs``). Light: one request at a time, ``--light``
in each phase. Flood: ``--flood`` requests sent at once. Of the flood phase only light requests count sent
while more flood requests were unanswered than there are seats; fewer than 20 such make the run void. Both
keys have weight 1. Prompts are random token ids, so that no prefix cache knows them. Each run has a server of
its own; of several the median ratio counts, and the ratio over the requests of all is told too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from started import started

from spola.bench.exchange import Call, Sample, ask
from spola.bench.http import Pool, Target
from spola.core.quantiles import describe

BAR = 1.5
LEAST = 20
SECRETS = {"light": "light-secret-0123456789", "heavy": "heavy-secret-0123456789"}
IDS = range(1000, 40_000)


@contextmanager
def server(model: str, seats: int, flood: int) -> Iterator[str]:
    """The URL of a server with both keys, which ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text("".join(f'[{name}]\nsecret = "{secret}"\n' for name, secret in SECRETS.items()))
        options = ["--keys", str(keys), "--max-seqs", str(seats), "--max-queue", str(2 * flood)]
        with started(model, *options, "--max-model-len", "512") as url:
            yield url


class Caller:
    """One key's requests, ``prompt`` and ``output`` tokens each."""

    def __init__(self, url: str, name: str, prompt: int, output: int) -> None:
        self._pool = Pool(Target(url, {"Authorization": f"Bearer {SECRETS[name]}"}))
        self._rng = random.Random(name)
        self._sizes = prompt, output
        self.open = 0

    async def one(self) -> Sample:
        prompt, output = self._sizes
        body: dict[str, Any] = {
            "prompt": self._rng.choices(IDS, k=prompt),
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
        }
        self.open += 1
        try:
            sample = await ask(
                self._pool, Call("/completions", json.dumps(body).encode()), time.perf_counter()
            )
        finally:
            self.open -= 1
        if sample.error:
            raise SystemExit(f"a request failed: {sample.error}")
        return sample

    async def loop(self) -> None:
        while True:
            await self.one()

    def close(self) -> None:
        self._pool.close()


async def light_alone(light: Caller, n: int) -> list[float]:
    return [(await light.one()).ttft_s for _ in range(n)]


async def measure(url: str, asked: argparse.Namespace) -> dict[str, Any]:
    light = Caller(url, "light", 32, 16)
    heavy = Caller(url, "heavy", 64, asked.heavy_output)
    await light_alone(light, 3)
    idle = await light_alone(light, 10)
    clients = [asyncio.create_task(heavy.loop()) for _ in range(asked.seats // 2)]
    await asyncio.sleep(2)
    beside = await light_alone(light, asked.light)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.sleep(1)
    flood = [asyncio.create_task(heavy.one()) for _ in range(asked.flood)]
    await asyncio.sleep(2)
    flooded: list[float] = []
    while len(flooded) < asked.light and heavy.open > asked.seats:
        flooded.append((await light.one()).ttft_s)
    for request in flood:
        request.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    light.close()
    heavy.close()
    return {"idle": idle, "half": beside, "flood": flooded}


def told(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Requests, p50 and p95 of each phase in seconds, and the ratio the bar is about."""
    phases = {}
    for name, values in samples.items():
        figures = describe(values)
        phases[name] = {"n": len(values), "p50_s": figures["p50"], "p95_s": figures["p95"]}
    return {**phases, "ratio": phases["flood"]["p95_s"] / phases["half"]["p95_s"]}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return round(value, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--flood", type=int, default=200)
    parser.add_argument("--light", type=int, default=30)
    parser.add_argument("--heavy-output", type=int, default=128)
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for _ in range(asked.runs):
        with server(asked.model, asked.seats, asked.flood) as url:
            runs.append(asyncio.run(measure(url, asked)))
        if len(runs[-1]["flood"]) < LEAST:
            print(f"void: only {len(runs[-1]['flood'])} light requests fell into the flood; raise --flood")
            return 1
        print(json.dumps(rounded(told(runs[-1]))), flush=True)
    pooled = told({name: [value for run in runs for value in run[name]] for name in runs[0]})
    ratio = statistics.median(told(run)["ratio"] for run in runs)
    print("all", json.dumps(rounded(pooled)))
    fine = ratio <= BAR
    print(f"flood / half of the seats: {ratio:.2f}, bar {BAR}: {'met' if fine else 'missed'}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
