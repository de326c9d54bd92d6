"""Load a model and say what that took: time, processor time, and peak memory against what it holds after it.

    python bench/load.py MODEL [--weights q8_0] [--context 512]

The peak is the process's largest resident set less what it had before loading. Run it once per process and
alone: a peak does not go down again. With --cold the file is dropped from the page cache first (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

from spola.load.resolve import resolve_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options


def peak() -> int:
    """Largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def drop_from_cache(path: Path) -> None:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description="What loading a model takes.")
    parser.add_argument("model")
    parser.add_argument("--weights", help="quantize to this type while loading")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--cold", action="store_true", help="drop the file from the page cache first")
    given = parser.parse_args()
    if given.cold:
        drop_from_cache(resolve_model(given.model).path)
    before, wall, busy = peak(), time.perf_counter(), time.process_time()
    options = Options(weights=given.weights, max_model_len=given.context, kv_memory=64 << 20)
    loaded = load_engine(given.model, options)
    took, used = time.perf_counter() - wall, time.process_time() - busy
    held = loaded.engine.runner.memory()
    extra = peak() - before
    loaded.engine.close()
    result = {
        "model": given.model,
        "weights": given.weights,
        "seconds": round(took, 2),
        "processor_seconds": round(used, 2),
        "load_average": os.getloadavg()[0],
        "held_mb": {name: round(size / 1e6, 1) for name, size in held.items()},
        "planned_weights_mb": round(loaded.config.packed_bytes / 1e6, 1),
        "peak_mb": round(extra / 1e6, 1),
        "peak_over_held": round(extra / sum(held.values()), 3),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
