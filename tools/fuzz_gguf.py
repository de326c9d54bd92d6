#!/usr/bin/env python3
"""Fuzz the GGUF reader with mutated files for a given time; exit 1 at the first failure, which is kept.

A failure is any exception but ModelError, an accepted file that is not sound, a file that takes more than
two seconds, or a process that grows by more than 200 MB. The same --seed gives the same files.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.gguf_mutate import mutate, read_hostile, rewrite, seeds

SLOW_S = 2.0
HANG_S = 20
GROWTH_MB = 200
POOL = 64  # mutated files that were accepted and are mutated further


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _reason(message: str, path: Path) -> str:
    """The kind of a refusal: its text without names and numbers."""
    text = message.removeprefix(f"{path}: ")
    return re.sub(r"'[^']*'|\"[^\"]*\"|\[.*\]|\d+", "_", text)[:70]


def _hangs(signal_number: int, frame: object) -> None:
    raise RuntimeError(f"did not end within {HANG_S} s")


def fuzz(seconds: float, seed: int, path: Path) -> Counter[str]:
    """Run for ``seconds``; counts of outcomes. RuntimeError at a failure, with the file left at ``path``."""
    rng = random.Random(seed)
    pool = list(seeds())
    fixed = len(pool)
    outcomes: Counter[str] = Counter()
    base = _peak_mb()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # Half of the files stem from the seeds, or the pool would drift to files that hold almost nothing.
        data = mutate(rng.choice(pool[:fixed] if rng.random() < 0.5 else pool), rng)
        rewrite(path, data)
        start = time.process_time()
        signal.alarm(HANG_S)
        refusal = read_hostile(path)
        signal.alarm(0)
        spent = time.process_time() - start
        if spent > SLOW_S:
            raise RuntimeError(f"took {spent:.1f} s of processor time")
        if _peak_mb() - base > GROWTH_MB:
            raise RuntimeError(f"the process grew from {base:.0f} to {_peak_mb():.0f} MB")
        outcomes["accepted" if refusal is None else _reason(refusal, path)] += 1
        if refusal is None and len(data) < 4096:
            if len(pool) < POOL:
                pool.append(data)
            else:
                pool[rng.randrange(fixed, POOL)] = data
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long to run (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations (default 0)")
    args = parser.parse_args()
    descriptor, name = tempfile.mkstemp(prefix="fuzz-", suffix=".gguf")
    os.close(descriptor)
    path = Path(name)
    signal.signal(signal.SIGALRM, _hangs)
    try:
        outcomes = fuzz(args.seconds, args.seed, path)
    except Exception:
        traceback.print_exc()
        print(f"failed; the file is {path}", file=sys.stderr)
        return 1
    path.unlink()
    total = sum(outcomes.values())
    for reason, count in outcomes.most_common():
        print(f"{count:9}  {reason}")
    print(f"{total} files in {args.seconds:.0f} s, seed {args.seed}, peak {_peak_mb():.0f} MB: no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
