"""How many sequences fit into the same KV bytes, paged or with contiguous reservations, and what is wasted.

The real scheduler and pools over the null backend: counting blocks needs no arithmetic. Requests are all
there at the start, with log-normal prompts (median 80) and answers (median 64, at most 512 tokens). Figures
are means over the steps in which somebody still waits. Writes paging.json and paging.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spola.backends.null import NullRunner
from spola.charts import Page
from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, KvGroup, RunnerConfig
from spola.engine.engine import Engine
from spola.engine.limits import Limits, Reservation
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler

GROUP = KvGroup(layers=tuple(range(30)), heads=3, k_dim=64, v_dim=64)  # SmolLM2-135M
RESERVATIONS: tuple[Reservation, ...] = ("contiguous", "paged")


def run(reservation: Reservation, args: argparse.Namespace) -> dict[str, Any]:
    blocks = args.kv_memory // GROUP.bytes_per_block
    runner = NullRunner(strict=False)
    config = RunnerConfig(
        kv_groups=(GROUP,),
        kv_blocks=(blocks,),
        max_step_tokens=512,
        max_seqs=256,
        max_model_len=args.max_model_len,
    )
    runner.load(SimpleNamespace(vocab=1000), (), config)
    limits = Limits(
        max_step_tokens=512,
        max_seqs=256,
        max_model_len=args.max_model_len,
        prefix_cache=False,
        reservation=reservation,
    )
    scheduler = Scheduler(limits, runner.capabilities, (GROUP,), (blocks,))
    engine = Engine(runner, scheduler, vocab=1000)
    rng = random.Random(args.seed)
    for id in range(args.requests):
        n, out = (max(1, min(512, round(math.exp(rng.gauss(math.log(m), 1.0))))) for m in (80, 64))
        params = SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True)
        engine.add(Request(id=id, ids=[rng.randrange(1000) for _ in range(n)], params=params))
    running, wasted, steps = [], [], 0
    while engine.has_work:
        engine.step(float(steps))
        steps += 1
        if scheduler.waiting:
            pool = scheduler.kv.pools[0]
            held = (pool.used + pool.promised) * BLOCK_TOKENS
            running.append(len(scheduler.running))
            wasted.append(1 - sum(r.computed for r in scheduler.running) / held)
    return {
        "sequences": round(sum(running) / len(running), 2),
        "most": max(running),
        "wasted_share": round(sum(wasted) / len(wasted), 4),
        "steps": steps,
        "preemptions": scheduler.stats.preemptions,
        "kv_bytes": blocks * GROUP.bytes_per_block,
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("."), metavar="FOLDER")
    parser.add_argument("--kv-memory", type=int, default=256 << 20, help="bytes")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {name: run(name, args) for name in RESERVATIONS}
    result["ratio"] = result["paged"]["sequences"] / result["contiguous"]["sequences"]
    page = Page(f"{args.kv_memory >> 20} MiB of KV cache, requests of up to {args.max_model_len} tokens")
    for title, name, unit in (("At a time", "sequences", "sequences"), ("Wasted", "wasted_share", "share")):
        page.bars(title, RESERVATIONS, [result[r][name] for r in RESERVATIONS], unit)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "paging.json").write_text(json.dumps(result, indent=2) + "\n")
    (args.output / "paging.svg").write_text(page.render())
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
