"""Speeds predicted from headers, before any model is loaded, beside the speeds measured afterwards.

    python tools/experiments/predict.py MODEL... [--output predict.json]

Of each model in turn: its operations are timed on a sample with random weights, as ``spola plan`` does, the
prediction is made, and only then is the model loaded, for the first time in this run, and measured as ``spola
bench offline`` does: the median of five. Exits 1 when one is off by more than ``--within``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from spola.bench.offline import Offline, Plan
from spola.core.errors import SpolaError
from spola.planner.model import open_plan_model
from spola.planner.sample import take_sample
from spola.planner.trial import Trial, run_trial
from spola.planner.tried import SIZE
from spola.runtime.build import load_engine
from spola.runtime.config import DEFAULT_STEP_TOKENS, Options
from spola.runtime.limits import MachineLimits, bench_lock, measure_limits
from spola.runtime.machine import probe


def predict(name: str, args: argparse.Namespace) -> tuple[dict[str, float], Trial]:
    """Tokens per second of the prompt and of each batch, from the header of ``name`` alone."""
    model = open_plan_model(name)
    trial = run_trial(take_sample(model.spec, model.dtypes, SIZE), threads=args.threads)
    first = trial.seconds(model.spec, [(0, args.prompt, 1)])
    out = {"prefill": args.prompt / first}
    for batch in args.batch:
        middle = 1 + args.tokens // 2  # the position of the token in the middle
        out[f"decode {batch}"] = batch / trial.seconds(model.spec, [(middle, 1, 1)] * batch)
    return out, trial


def measure(name: str, args: argparse.Namespace, limits: MachineLimits) -> dict[str, float]:
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
    if args.prompt > DEFAULT_STEP_TOKENS:
        parser.error(f"--prompt {args.prompt}: at most the {DEFAULT_STEP_TOKENS} tokens of one step")
    rows: list[dict[str, Any]] = []
    trials: dict[str, Any] = {}
    try:
        with bench_lock() as load:
            limits = measure_limits(args.threads)
            for name in args.models:
                said, trial = predict(name, args)
                trials[name] = msgspec.to_builtins(trial)
                for what, tok_s in measure(name, args, limits).items():
                    found = {"predicted": said[what], "measured": tok_s, "ratio": said[what] / tok_s}
                    rows.append({"model": name, "what": what} | found)
    except SpolaError as error:
        print(f"predict: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print(
            f"{Path(row['model']).stem:<24} {row['what']:<10} predicted {row['predicted']:8.1f} tok/s, "
            f"measured {row['measured']:8.1f}, ratio {row['ratio']:.2f}"
        )
    result = {"machine": limits.as_json(), "trials": trials, "load": load, "rows": rows}
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(abs(row["ratio"] - 1) for row in rows)
    print(f"worst: {worst:.0%} off")
    return int(worst > args.within)


if __name__ == "__main__":
    sys.exit(main())
