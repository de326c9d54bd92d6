"""A workload simulated, then run: ``spola plan --simulate`` beside ``spola bench serve`` at several rates.

    python tools/experiments/simulate_check.py [-m MODEL] [--rates 1 2 4] [--output simulate.json]

The machine is measured and all rates are simulated first; then a server is started and loaded with the same
mix and the same arrivals. Exits 1 when a median of TTFT or TPOT is off by more than ``--within``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from spola.bench.figures import figures
from spola.bench.http import Target
from spola.bench.serve import Load, calls_of, drive
from spola.core.runner import BLOCK_TOKENS
from spola.planner.model import open_plan_model
from spola.planner.overhead import measure_overhead
from spola.planner.sample import take_sample
from spola.planner.simulate import Settings, simulate
from spola.planner.speed import Speed
from spola.planner.trial import run_trial
from spola.planner.tried import SIZE
from spola.runtime.fit import Layout
from spola.runtime.limits import bench_lock, measure_limits, measure_rates
from spola.runtime.machine import probe
from spola.spec.kv import kv_groups
from spola.workload import Mix, mix


def simulated(args: argparse.Namespace, mixed: Mix) -> list[dict[str, Any]]:
    model, threads = open_plan_model(args.model), probe().threads
    groups = kv_groups(model.spec)
    limits = measure_limits(threads)
    rates = measure_rates(sorted(set(model.dtypes.values())))
    speed = Speed(model.spec, model.dtypes, groups, limits, rates, threads, *measure_overhead())
    speed = replace(speed, trial=run_trial(take_sample(model.spec, model.dtypes, SIZE), threads=threads))
    layout = Layout(groups, BLOCK_TOKENS, args.seqs, 512)
    settings = Settings(
        kv_blocks=layout.split(args.seqs * layout.blocks_of(args.context)),
        max_seqs=args.seqs,
        max_model_len=args.context,
    )
    return [simulate(speed, groups, settings, mixed, rate=rate, seed=args.seed) for rate in args.rates]


def measured(args: argparse.Namespace, mixed: Mix) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "spola", "serve", "-m", args.model, "--port", "0", "--json"]
    command += ["--max-model-len", str(args.context), "--max-seqs", str(args.seqs)]
    out = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        text = b""
        while line := server.stdout.readline():
            text += line
            if line.rstrip() == b"}":
                break
        started = json.loads(text)
        try:
            for rate in args.rates:
                calls = calls_of(mixed, started["model"], endpoint="completions", vocab=1000)
                load = Load(rate=rate, seed=args.seed, warmup=2)
                out.append(figures(asyncio.run(drive(Target(started["url"]), calls, load))))
        finally:
            server.terminate()
            server.wait()
    return out


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
        said, seen = simulated(args, mixed), measured(args, mixed)
    rows = []
    for rate, one, other in zip(args.rates, said, seen, strict=True):
        for name in ("ttft_ms", "tpot_ms"):
            a, b = one[name]["p50"], other[name]["p50"]
            rows.append({"rate": rate, "what": name, "simulated": a, "measured": b, "ratio": a / b})
            print(f"rate {rate:<5g} p50 {name:<8} simulated {a:8.2f}, measured {b:8.2f}, ratio {a / b:.2f}")
    result = {"load": found, "rows": rows, "simulated": said, "measured": seen}
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(abs(row["ratio"] - 1) > args.within for row in rows))


if __name__ == "__main__":
    sys.exit(main())
