"""A workload simulated, then run: ``spola plan --simulate`` beside ``spola bench serve`` at several rates.

    python tools/experiments/simulate_check.py [-m MODEL] [--rates 1 2 4] [--output simulate.json]

First what a token costs outside of the engine is measured: processor time of the event loop and of this
client, with a server of another model with random weights, large enough to empty the caches at each step.
Then a server of the model is started and loaded with the same mix and the same arrivals at each rate, by a
client on the same processors. Before and after each rate, while the server has nothing to do, the operations
of a sample of the model are tried and the workload is simulated: the mean of both counts, since a machine
that others share changes from one minute to the next. Exits 1 when a median of TTFT or TPOT is off by more
than ``--within``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spola.bench.figures import figures
from spola.bench.http import Target
from spola.bench.serve import Load, calls_of, drive
from spola.core.runner import BLOCK_TOKENS
from spola.load.resolve import resolve_model
from spola.planner.model import open_plan_model
from spola.planner.sample import take_sample
from spola.planner.simulate import Settings, simulate
from spola.planner.speed import Speed
from spola.planner.trial import run_trial
from spola.planner.tried import SIZE
from spola.runtime.fit import Layout
from spola.runtime.limits import bench_lock, measure_limits
from spola.runtime.machine import probe
from spola.spec.kv import kv_groups
from spola.workload import Mix, mix

OTHER, OTHER_REQUESTS = "qwen2-0.5b", 10


class Simulated:
    """Simulations of the workload, each with a trial of the model of its own."""

    def __init__(self, args: argparse.Namespace, mixed: Mix, token_s: float) -> None:
        self._args, self._mixed, self._token_s = args, mixed, token_s
        self._model, self._threads = open_plan_model(args.model), probe().threads
        self._groups = kv_groups(self._model.spec)
        self._limits = measure_limits(self._threads)

    def at(self, rate: float) -> dict[str, Any]:
        args, model, groups = self._args, self._model, self._groups
        trial = run_trial(take_sample(model.spec, model.dtypes, SIZE), threads=self._threads)
        # The cost of steps is the trial's: no rates of kernels, and nothing that Python adds beside it.
        speed = Speed(
            model.spec, model.dtypes, groups, self._limits, {}, self._threads, 0.0, 0.0, trial=trial
        )
        layout = Layout(groups, BLOCK_TOKENS, args.seqs, 512)
        settings = Settings(
            kv_blocks=layout.split(args.seqs * layout.blocks_of(args.context)),
            max_seqs=args.seqs,
            max_model_len=args.context,
        )
        more: dict[str, Any] = {"seed": args.seed, "token_s": self._token_s}
        return simulate(speed, groups, settings, self._mixed, rate=rate, **more)


@contextmanager
def serving(name: str, args: argparse.Namespace) -> Iterator[tuple[int, dict[str, Any]]]:
    """A server of ``name``: its process, and what it tells when it has started."""
    command = [sys.executable, "-m", "spola", "serve", "-m", name, "--port", "0", "--json"]
    command += ["--max-model-len", str(args.context), "--max-seqs", str(args.seqs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        text = b""
        while line := server.stdout.readline():
            text += line
            if line.rstrip() == b"}":
                break
        try:
            yield server.pid, json.loads(text)
        finally:
            server.terminate()
            server.wait()


def load(started: dict[str, Any], args: argparse.Namespace, mixed: Mix, **how: Any) -> dict[str, Any]:
    calls = calls_of(mixed, started["model"], endpoint="completions", vocab=1000)
    driven = drive(Target(started["url"]), calls, Load(seed=args.seed, warmup=0, **how))
    return figures(asyncio.run(driven))


def token_cost(args: argparse.Namespace, mixed: Mix) -> float:
    """Processor time of a token on its way from the engine to the client, one stream at a time: of the event
    loop, which is the main thread of the server, and of this process.
    """
    real = resolve_model(args.model).path
    few = Mix(mixed.items[:OTHER_REQUESTS], mixed.about)
    with tempfile.TemporaryDirectory() as folder:
        other = f"{folder}/other.gguf"
        make = [sys.executable, str(Path(__file__).parents[1] / "make_gguf.py"), "--shape", OTHER]
        make += ["--type", "Q4_0", "--tokenizer-from", str(real), other]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        with serving(other, args) as (pid, started):
            load(started, args, few, concurrency=1)  # what happens once in a process
            before = _ran_s(pid) + time.process_time()
            found = load(started, args, few, concurrency=1)
            return (_ran_s(pid) + time.process_time() - before) / found["output_tokens"]


def _ran_s(pid: int) -> float:
    """Seconds that the main thread of a process ran, from proc(5)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=0.2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    mixed = mix("random", args.requests, seed=args.seed, prompt=args.prompt, output=args.tokens, spread=0.5)
    with bench_lock() as found:
        machine = probe()
        token_s = token_cost(args, mixed)
        shared = machine.threads >= machine.cpus  # no processor is left for event loop and client
        simulated = Simulated(args, mixed, token_s if shared else 0.0)
        seen, said = [], []
        with serving(args.model, args) as (_, started):
            load(started, args, Mix(mixed.items[:3], mixed.about), concurrency=1)  # warms up
            for rate in args.rates:
                before = simulated.at(rate)
                seen.append(load(started, args, mixed, rate=rate))
                said.append((before, simulated.at(rate)))
    rows = []
    for rate, both, other in zip(args.rates, said, seen, strict=True):
        for name in ("ttft_ms", "tpot_ms"):
            a, b = statistics.fmean(one[name]["p50"] for one in both), other[name]["p50"]
            row = {"rate": rate, "what": name, "simulated": [one[name]["p50"] for one in both], "measured": b}
            rows.append(row | {"ratio": a / b})
            print(f"rate {rate:<5g} p50 {name:<8} simulated {a:8.2f}, measured {b:8.2f}, ratio {a / b:.2f}")
    print(f"a token took {1e3 * token_s:.2f} ms of the processors outside of the engine")
    result = {"load": found, "token_s": token_s, "rows": rows, "simulated": said, "measured": seen}
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(abs(row["ratio"] - 1) > args.within for row in rows))


if __name__ == "__main__":
    sys.exit(main())
