"""What the engine costs in Python: schedule, commit and conversion, on a backend that does nothing.

Prints milliseconds of processor time per decode step at 1, 16 and 256 requests, medians over ``--steps``
steps (time of this thread: others on the machine do not count), and the 95th percentile. "convert" stands for
reading the Step as a backend does: ids and block tables as buffers, and making the StepOutput. Exits 1 when a
median of all three is above its bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from spola.core.params import SamplingParams
from spola.core.quantiles import percentile
from spola.core.runner import Capabilities, KvGroup, RunnerConfig
from spola.core.step import SliceOutput, Step, StepOutput, unpack_ids
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.metrics import Metrics
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler

BOUND_MS = {1: 0.1, 16: 0.3, 256: 2.0}
PROMPT, STEPS = 200, 400


class Idle:
    """A Runner that gives every slice token 7, and notes when it was called and when it returned."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(device="null", invariant=True)
        self.entered = self.left = 0.0

    def load(self, spec: object, tensors: object, config: RunnerConfig) -> None:
        pass

    def execute(self, step: Step) -> StepOutput:
        self.entered = time.thread_time()
        for piece in step.slices:
            unpack_ids(piece.ids)
            for table in piece.tables:
                unpack_ids(table)
        out = StepOutput(1e-3, tuple(SliceOutput(ids=(7,) if s.n_head else ()) for s in step.slices))
        self.left = time.thread_time()
        return out

    def memory(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def measure(requests: int, steps: int) -> list[tuple[float, float, float]]:
    """Seconds of (schedule, convert, commit) of each decode step of ``requests`` requests."""
    limits = Limits(max_step_tokens=512, max_seqs=requests, max_model_len=PROMPT + steps + 100)
    blocks = requests * ((PROMPT + steps + 100) // 32 + 2)
    runner = Idle()
    groups = (KvGroup((0,), 1, 64, 64),)
    scheduler = Scheduler(limits, runner.capabilities, groups, (blocks,))
    engine = Engine(runner, scheduler, vocab=1000, observers=[Metrics(requests)])
    params = SamplingParams(temperature=0.0, max_tokens=steps + 50)
    for id in range(requests):
        engine.add(Request(id=id, ids=[(id + i) % 1000 for i in range(PROMPT)], params=params))
    now = 0.0
    while any(not r.decoding for r in scheduler.requests.values()):
        engine.step(now)
    found = []
    for _ in range(steps):
        begin = time.thread_time()
        engine.step(now)
        end = time.thread_time()
        found.append((runner.entered - begin, runner.left - runner.entered, end - runner.left))
        now += 1e-3
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args(argv).steps
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print("requests  schedule  convert   commit   median      p95    bound  (ms)")
    slow = False
    for requests, bound in BOUND_MS.items():
        found = measure(requests, steps)
        parts = [percentile(sorted(x * 1e3 for x in column), 50) for column in zip(*found, strict=True)]
        totals = sorted(sum(step) * 1e3 for step in found)
        median, p95 = percentile(totals, 50), percentile(totals, 95)
        columns = "  ".join(f"{value:7.3f}" for value in (*parts, median, p95))
        slow |= median > bound
        print(f"{requests:8d}  {columns}  {bound:7.1f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
