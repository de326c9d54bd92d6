"""What invariance costs of a whole step: kernels free of its rules beside the library's, weighed by time.

    python tools/experiments/invariance.py --bench build/native/spola_invariance_bench smollm2=FILE 1b=FILE

The benchmark times each kernel beside one that may add in any order (native/bench/free). The time that such
kernels would save is laid over what the decoder's own clock says of each operation, for decode of 1 and of 16
sequences, decode at depth 2,048, and prompts of 512 and 2,048 tokens. A free kernel that is slower is
no gain: nobody would use it. Exits 1 when a step would take less time by more than ``--within`` of it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spola.bench.offline import Plan
from spola.bench.profile import profile
from spola.core.errors import SpolaError
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.limits import MachineLimits, bench_lock
from spola.runtime.machine import probe

NOTHING = MachineLimits("", 1.0, {"f32": 1.0, "a8": 1.0, "a16": 1.0})  # of the profile only seconds are used
ATTENTION = ("attention", "merge of attention")
NORM_ROWS = 2000  # of one pass of the benchmark


@dataclass(frozen=True, slots=True)
class Case:
    """A step to weigh: how to run it, and which lines of the benchmark stand for its parts."""

    name: str
    prompt: int
    batch: int
    phase: str
    attention: str
    matrices: str


CASES = (
    Case("decode 1", 128, 1, "decode", "decode 1 at 144", "decode 1"),
    Case("decode 16", 128, 16, "decode", "decode 16 at 144", "16 rows"),
    Case("decode 1 at 2048", 2048, 1, "decode", "decode 1 at 2064", "decode 1"),
    Case("prefill 512", 512, 1, "prefill", "prefill 512", "48 rows"),
    Case("prefill 2048", 2048, 1, "prefill", "prefill 2048", "48 rows"),
)


def kind_of(operation: str) -> str:
    """Which of the benchmark's lines an operation of the profile belongs to; "other" for none."""
    if operation in ATTENTION:
        return "attention"
    return "matrices" if operation.startswith("matrix ") else "other"


def cost(
    seconds: Mapping[str, float], gains: Mapping[str, float], norm_seconds: float, total: float
) -> dict[str, float]:
    """Shares of ``total`` seconds that free kernels would save.

    ``seconds``: of each kind of operation; ``gains``: 1 - free over ours, by kind; ``norm_seconds``: saved by
    norms in another order.
    """
    saved = {kind: max(0.0, gains[kind]) * seconds.get(kind, 0.0) / total for kind in gains}
    saved["norms"] = max(0.0, norm_seconds) / total
    return saved | {"step": math.fsum(saved.values())}


def measure_steps(path: str, threads: int, tokens: int, repeat: int) -> dict[tuple[int, int], dict[str, Any]]:
    """The profile's documents of a model by prompt and batch, with the number of layers."""
    documents: dict[tuple[int, int], dict[str, Any]] = {}
    for prompt, batch in dict.fromkeys((case.prompt, case.batch) for case in CASES):
        longest = Plan(prompt, tokens, (batch,), depth=prompt).longest
        options = Options(threads=threads, max_seqs=batch, max_model_len=longest)
        loaded = load_engine(path, options)
        try:
            document = profile(loaded, NOTHING, prompt=prompt, tokens=tokens, batch=batch, repeat=repeat)
            layers = sum(layer is not None for layer in loaded.spec.layers)
        finally:
            loaded.engine.close()
        documents[prompt, batch] = document | {"layers": layers}
    return documents


def weigh(case: Case, document: Mapping[str, Any], lines: Mapping[tuple[str, str], Any], threads: int) -> Any:
    """One row of the result: what the operations take and what free kernels would save."""
    phase = document["phases"][case.phase]
    seconds: dict[str, float] = {}
    for row in phase["operations"]:
        kind = kind_of(row["operation"])
        seconds[kind] = seconds.get(kind, 0.0) + row["seconds"]
    gains = {
        "attention": 1 - lines["attention", case.attention]["free_over_ours"],
        "matrices": 1 - lines["matrices", case.matrices]["free_over_ours"],
    }
    norm = lines["norm and quantize", f"{NORM_ROWS} rows"]
    rows = phase["tokens"] * (2 * document["layers"] + 1)
    alone = case.batch * (case.phase == "decode")  # with one or two rows every worker norms all of them
    norms = rows * (norm["ours_s"] - norm["free_s"]) / NORM_ROWS / (1 if 0 < alone <= 2 else threads)
    shares = {kind: s / phase["seconds"] for kind, s in seconds.items()}
    return {
        "step": case.name,
        "tok_s": phase["tok_s"],
        "shares": shares,
        "gains": gains,
        "cost": cost(seconds, gains, norms, phase["seconds"]),
    }


def show(model: str, row: Mapping[str, Any]) -> None:
    parts = ", ".join(
        f"{kind} {row['shares'].get(kind, 0):.0%} of it, {row['gains'][kind]:+.1%}" for kind in row["gains"]
    )
    print(
        f"{model:<10} {row['step']:<18} {row['tok_s']:8.1f} tok/s  {parts}; in all {row['cost']['step']:.1%}"
    )


def run_bench(args: argparse.Namespace, isa: str) -> list[dict[str, Any]]:
    command = [str(args.bench), isa, str(args.threads), str(args.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="SHAPE=FILE", help="Shape: smollm2 or 1b.")
    parser.add_argument("--bench", type=Path, required=True, help="spola_invariance_bench of a native build.")
    parser.add_argument("--lines", type=Path, help="Its output, kept from an earlier run, instead of a run.")
    parser.add_argument("--threads", type=int, default=probe().threads)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="Of each line of the benchmark.")
    parser.add_argument("--within", type=float, default=0.1)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"steps": []}
    try:
        with bench_lock() as load:
            result["load"] = load
            documents = {
                shape: measure_steps(path, args.threads, args.tokens, args.repeat)
                for shape, _, path in (given.partition("=") for given in args.models)
            }
            isa = next(iter(next(iter(documents.values())).values()))["isa"]
            kept = args.lines.read_text().splitlines() if args.lines else None
            result["lines"] = run_bench(args, isa) if kept is None else [json.loads(line) for line in kept]
    except (OSError, subprocess.CalledProcessError, SpolaError) as error:
        print(f"invariance: {error}", file=sys.stderr)
        return 1
    for model, found in documents.items():
        lines = {(line["op"], line["at"]): line for line in result["lines"] if line["model"] == model}
        for case in CASES:
            row = weigh(case, found[case.prompt, case.batch], lines, args.threads)
            result["steps"].append({"model": model} | row)
            show(model, row)
    if args.output:
        args.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0 if all(row["cost"]["step"] <= args.within for row in result["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
