"""Peak resident memory of ``spola serve`` beside its plan, over models, KV types and contexts, fully loaded.

    python tools/experiments/memory_grid.py MODEL... [--kv f16 f32] [--context 256 1024] [--output grid.json]

Each server is filled to what it was planned for: so many requests at a time, each of the full length, their
prompts read in the widest steps, and one with logprobs of its prompt. Exits 1 when one is off by more than
the larger of 5 % and 40 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from spola.bench.http import Target
from spola.bench.serve import Call, Load, calls_of, drive
from spola.runtime.config import DEFAULT_STEP_TOKENS
from spola.runtime.memory import MemoryPlan
from spola.workload import mix


def peak_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def scored(model: str, context: int) -> Call:
    """A request for the logprobs of its prompt, which takes as many logits as are held at a time."""
    prompt = [7 + i % 200 for i in range(context - 8)]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1, "stream": True}
    return Call("/completions", json.dumps(body).encode())


def one(model: str, kv: str, context: int, seqs: int) -> dict[str, Any]:
    """Start a server, fill its KV cache, and compare."""
    command = [sys.executable, "-m", "spola", "serve", "-m", model, "--port", "0", "--json", "--kv-dtype", kv]
    command += ["--max-model-len", str(context), "--max-seqs", str(seqs), "--no-prefix-cache"]
    command += ["--itl-target", "100000"]  # else steps beside decodes are narrower than the workspace is
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        text = b""
        while line := server.stdout.readline():
            text += line
            if line.rstrip() == b"}":
                break
        started = json.loads(text)
        planned = started["config"]["memory"]
        # Answers last until the last prompt is read: all must be there at the same time.
        output = 3 * seqs * -(-context // DEFAULT_STEP_TOKENS) + 16
        items = mix("random", seqs, prompt=context - output - 8, output=output)
        loaded = peak_of(server.pid)
        calls = calls_of(items, started["model"], endpoint="completions", vocab=250)
        calls.append(scored(started["model"], context))
        outcome = asyncio.run(drive(Target(started["url"]), calls, Load(concurrency=seqs, warmup=0)))
        peak = peak_of(server.pid)
        server.terminate()
        server.wait()
    total = MemoryPlan(**planned).peak
    allowed = max(0.05 * total, 40e6)
    return {
        "model": Path(model).stem,
        "kv": kv,
        "context": context,
        "requests": seqs,
        "failed": sum(bool(sample.error) for sample in outcome.samples),
        "planned": total,
        "measured": peak,
        "after_loading": loaded,
        "off": peak - total,
        "parts": planned,
        "within": abs(peak - total) <= allowed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--kv", nargs="+", default=["f16", "f32"])
    parser.add_argument("--context", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--seqs", type=int, default=4)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    for model in args.models:
        for kv in args.kv:
            for context in args.context:
                row = one(model, kv, context, args.seqs)
                rows.append(row)
                print(
                    f"{row['model']:<30} {kv:<5} {context:>6} x {args.seqs}  "
                    f"planned {row['planned'] / 1e6:8.1f} MB, "
                    f"measured {row['measured'] / 1e6:8.1f} MB, {row['off'] / 1e6:+6.1f} MB",
                    flush=True,
                )
    if args.output is not None:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(not all(row["within"] and not row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
