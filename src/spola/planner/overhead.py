"""What Python adds to a step on this machine: the real engine on the null backend, timed for a moment."""

from __future__ import annotations

import statistics
import time

from spola.backends.null import NullRunner
from spola.core.params import SamplingParams
from spola.core.runner import KvGroup, RunnerConfig
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.metrics import Metrics
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler

__all__ = ["measure_overhead"]

_STEPS = 60
_NATIVE_S = 4e-5  # turning a step into the call and back, which the null backend does not do


class _Vocabulary:
    vocab = 1000


def measure_overhead() -> tuple[float, float]:
    """Seconds that a step takes without computing, and what each request in it adds."""
    one, many = _step_s(1), _step_s(16)
    each = max(0.0, (many - one) / 15)
    return max(0.0, one - each) + _NATIVE_S, each


def _step_s(requests: int) -> float:
    group = KvGroup(layers=(0,), heads=1, k_dim=8, v_dim=8)
    runner = NullRunner(strict=False, script=lambda state, ids: 1)
    blocks = (64 * requests,)
    config = RunnerConfig(
        kv_groups=(group,), kv_blocks=blocks, max_step_tokens=512, max_seqs=requests, max_model_len=1024
    )
    runner.load(_Vocabulary(), (), config)
    limits = Limits(max_step_tokens=512, max_seqs=requests, max_model_len=1024)
    scheduler = Scheduler(limits, runner.capabilities, (group,), blocks)
    engine = Engine(runner, scheduler, vocab=1000, observers=[Metrics(requests, stall_s=1.0)])
    for i in range(requests):
        params = SamplingParams(temperature=0.0, max_tokens=_STEPS + 20, ignore_eos=True)
        engine.add(Request(id=i + 1, ids=[1, 2, 3], params=params))
    times = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        engine.step(time.monotonic())
        times.append(time.perf_counter() - start)
    engine.close()
    return statistics.median(times)
