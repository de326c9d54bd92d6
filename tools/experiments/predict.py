"""Speeds predicted from headers, before any model is loaded, beside the speeds measured afterwards.

    python tools/experiments/predict.py MODEL... [--output predict.json]

The machine is measured first, in this run; then every prediction is made; then each model is loaded and
measured as ``spola bench offline`` does: the median of five. Exits 1 when one is off by more than
``--within``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from spola.bench.offline import Offline, Plan
from spola.core.errors import SpolaError
from spola.planner.model import open_plan_model
from spola.planner.overhead import measure_overhead
from spola.planner.speed import Speed
from spola.runtime.build import load_engine
from spola.runtime.config import DEFAULT_STEP_TOKENS, Options
from spola.runtime.limits import Limits, bench_lock, measure_limits, measure_rates
from spola.runtime.machine import probe
from spola.spec.kv import kv_groups


def predict(
    name: str, args: argparse.Namespace, limits: Limits, rates: Any, overhead: Any
) -> dict[str, float]:
    """Tokens per second of the prompt and of each batch, from the header of ``name`` alone."""
    model = open_plan_model(name)
    speed = Speed(model.spec, model.dtypes, kv_groups(model.spec), limits, rates, args.threads, *overhead)
    out = {"prefill": args.prompt / speed.prefill(args.prompt, DEFAULT_STEP_TOKENS)}
    for batch in args.batch:
        middle = 2 + args.tokens // 2
        out[f"decode {batch}"] = batch / speed.decode(batch, middle)
    return out


def measure(name: str, args: argparse.Namespace, limits: Limits) -> dict[str, float]:
    plan = Plan(args.prompt, args.tokens, args.batch, repeat=args.repeat)
    loaded = load_engine(
        name, Options(threads=args.threads, max_seqs=max(args.batch), max_model_len=plan.longest)
    )
    try:
        result = Offline(loaded, limits).run(plan)
    finally:
        loaded.engine.close()
    out = {"prefill": result["prefill"]["tok_s"]}
    return out | {f"decode {row['batch']}": row["tok_s"] for row in result["decode"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=probe().threads)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    try:
        with bench_lock() as load:
            limits = measure_limits(args.threads)
            kinds = {kind for name in args.models for kind in open_plan_model(name).dtypes.values()}
            rates = measure_rates(sorted(kinds))
            overhead = measure_overhead()
            predicted = {name: predict(name, args, limits, rates, overhead) for name in args.models}
            for name in args.models:
                measured = measure(name, args, limits)
                for what, tok_s in measured.items():
                    said = predicted[name][what]
                    rows.append(
                        {
                            "model": name,
                            "what": what,
                            "predicted": said,
                            "measured": tok_s,
                            "ratio": said / tok_s,
                        }
                    )
    except SpolaError as error:
        print(f"predict: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print(
            f"{Path(row['model']).stem:<24} {row['what']:<10} predicted {row['predicted']:8.1f} tok/s, "
            f"measured {row['measured']:8.1f}, ratio {row['ratio']:.2f}"
        )
    result = {"machine": limits.as_json(), "rates": rates, "overhead_s": overhead, "load": load, "rows": rows}
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(abs(row["ratio"] - 1) for row in rows)
    print(f"worst: {worst:.0%} off")
    return int(worst > args.within)


if __name__ == "__main__":
    sys.exit(main())
