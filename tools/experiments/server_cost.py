"""What the server's Python costs: processor time outside the native call, and throughput beside offline.

    python tools/experiments/server_cost.py [-m MODEL] [--streams 16] [--rounds 5] [--pretend MS]

In turn, ``--rounds`` times: so many streams over HTTP (a client in a process of its own), and prompts of the
same length through ``LLM.generate`` in this process, on an engine of its own. For each round over HTTP:

- Python's share: processor time (clocks of the threads) of all Python threads of the server, the engine's
  thread counted without what it spends inside the native call, over the time that passes; from samples every
  20 ms, those between which all streams were decoding. Bar: at most 5 %.
- Tokens per second from the first request sent to the last token, and the same offline.

``--pretend``: the native call sleeps for so many milliseconds and gives tokens of a fixed text, and nothing
runs offline. That tells the processor time of a step within some percent also on a machine that is not quiet,
lower than beside kernels that use the same caches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import uvicorn

from spola.core.params import SamplingParams
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.fair_lock import FairLock
from spola.runtime.llm import LLM
from spola.runtime.service import Service
from spola.server.app import create_app
from spola.server.connections import protocol
from spola.server.options import event_loop
from spola.server.serve import bind
from spola.server.state import State

BAR = 0.05
SAMPLE_S = 0.02
TEXT = (
    "A server reads what its clients ask, line by line, and answers each of them as soon as there is "
    "something to say. What one step of the model gives is a token for everybody: half a word, a comma, 歪."
)


class Timed:
    """A native decoder whose ``execute`` adds up its calling thread's processor time and its time."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.cpu = self.wall = 0.0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def execute(self, *given: Any) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return self._decoder.execute(*given)
        finally:
            self.cpu += time.thread_time() - cpu
            self.wall += time.perf_counter() - wall
            self.calls += 1


class Pretended:
    """A native decoder that sleeps instead; every slice with a head gives the next of ``tokens``."""

    def __init__(self, decoder: Any, seconds: float, tokens: Sequence[int]) -> None:
        self._decoder = decoder
        self._seconds = seconds
        self._tokens = tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def execute(
        self, new: Any, gone: Any, copies: Any, zero: Any, slices: list[tuple[Any, ...]]
    ) -> list[Any]:
        time.sleep(self._seconds)
        tokens = self._tokens
        return [
            ((tokens[(id + start) % len(tokens)],) if n_head else (), 0, None, None, None, None, None, None)
            for id, start, _, _, n_head, *_ in slices
        ]


@dataclass
class Reading:
    """Sums at one moment: processor time of the server's Python threads and of the engine's among them,
    what of the latter was spent in native calls, and the time of these."""

    at: float
    python: float
    engine: float
    native: float
    wall: float
    calls: int
    full: bool


class Sampler(threading.Thread):
    """Reads the clocks of the other Python threads while ``streams`` requests decode."""

    def __init__(self, service: Service, timed: Timed, streams: int) -> None:
        super().__init__(daemon=True)
        self._service, self._timed, self._streams = service, timed, streams
        self._end = threading.Event()
        self.readings: list[Reading] = []

    def run(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.readings.append(self._read())

    def stop(self) -> None:
        self._end.set()
        self.join()

    def _read(self) -> Reading:
        me, spent, engine = threading.get_ident(), 0.0, 0.0
        for thread in threading.enumerate():
            if thread.ident not in (None, me, threading.main_thread().ident):
                assert thread.ident is not None
                cpu = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                spent += cpu
                engine += cpu if thread is self._service.loop._thread else 0.0
        metrics, timed = self._service.metrics, self._timed
        full = metrics.running == self._streams and not metrics.waiting
        return Reading(time.perf_counter(), spent, engine, timed.cpu, timed.wall, timed.calls, full)


def share(readings: list[Reading]) -> dict[str, float]:
    """Python's part of the longest run of readings in which all streams were running.

    A native call under way at either end shifts processor time of at most one step in or out.
    """
    best: list[Reading] = []
    run: list[Reading] = []
    for reading in readings:
        run = [*run, reading] if reading.full else []
        best = run if len(run) > len(best) else best
    if len(best) < 20:
        raise SystemExit(f"only {len(best)} samples with all streams running: raise --output")
    # The first tenth has prefills in it.
    first, last = best[len(best) // 10], best[-1]
    passed, steps = last.at - first.at, last.calls - first.calls
    outside = (last.python - first.python) - (last.native - first.native)
    engine = (last.engine - first.engine) - (last.native - first.native)
    return {
        "python_share": outside / passed,
        "python_us_per_step": outside / steps * 1e6,
        "engine_us_per_step": engine / steps * 1e6,
        "step_ms": passed / steps * 1e3,
        "native_share": (last.wall - first.wall) / passed,
    }


@contextmanager
def serving(
    model: str, options: Options, pretend_s: float | None = None, loop: str = "asyncio"
) -> Iterator[tuple[str, Service, Timed]]:
    """A server in a thread of this process, its URL, and the clock around its native call."""
    service = build_service(model, options, turn=FairLock())  # as serve does
    runner = service.loop._engine.runner
    if pretend_s is not None:
        runner._decoder = Pretended(runner._decoder, pretend_s, service.prompt_ids(TEXT))
    timed = runner._decoder = Timed(runner._decoder)
    state = State(("model",))
    config = uvicorn.Config(
        create_app(state), http=protocol(state.options), ws="none", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # they belong to the main thread
    ready = threading.Event()

    async def main() -> None:
        state.ready(service)
        ready.set()
        await server.serve(sockets=[listener])

    with bind("127.0.0.1", 0) as listener:

        def run() -> None:
            with asyncio.Runner(loop_factory=event_loop(loop)) as runner:
                runner.run(main())

        thread = threading.Thread(target=run, name="server")
        thread.start()
        ready.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", service, timed
        finally:
            server.should_exit = True
            thread.join()
            service.close()


def over_http(url: str, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "spola", "bench", "serve", "--url", url, "--json"]
    command += ["--endpoint", "completions", "--token-ids", "40000", "--warmup", "0", "--seed", str(seed)]
    command += ["--concurrency", str(asked.streams), "--requests", str(asked.streams)]
    command += ["--prompt", str(asked.prompt), "--output", str(asked.output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["failed"]:
        raise SystemExit(f"{found['failed']} requests failed")
    return found


def offline(llm: LLM, asked: argparse.Namespace, seed: int) -> float:
    """Tokens per second."""
    params = SamplingParams(temperature=0.0, max_tokens=asked.output, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": [1000 + (seed * 9973 + i * 131 + k * 37) % 39000 for k in range(asked.prompt)]}
        for i in range(asked.streams)
    ]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params)
    passed = time.perf_counter() - began
    return sum(len(output.outputs[0].token_ids) for output in outputs) / passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pretend", type=float, metavar="MS")
    parser.add_argument("--event-loop", choices=("asyncio", "uvloop"), default="asyncio")
    asked = parser.parse_args()
    options = Options(max_seqs=asked.streams, max_model_len=1024, threads=asked.threads, kv_memory=1 << 30)
    pretend_s = None if asked.pretend is None else asked.pretend / 1e3
    rows: list[dict[str, float]] = []
    with (
        serving(asked.model, options, pretend_s, asked.event_loop) as (url, service, timed),
        nullcontext()
        if pretend_s is not None
        else LLM(
            asked.model,
            max_num_seqs=asked.streams,
            max_model_len=1024,
            threads=asked.threads,
            kv_memory=1 << 30,
        ) as llm,
    ):
        if llm is not None:
            offline(llm, asked, 999)
        for seed in range(asked.rounds):
            sampler = Sampler(service, timed, asked.streams)
            sampler.start()
            found = over_http(url, asked, seed)
            sampler.stop()
            row = share(sampler.readings)
            row |= {"http_tok_s": found["output_tok_s"], "client_cpu": found["client_cpu"]}
            if llm is not None:
                row["offline_tok_s"] = offline(llm, asked, seed)
            rows.append(row)
            print(json.dumps({name: round(value, 4) for name, value in row.items()}), flush=True)
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print("medians", json.dumps({name: round(value, 4) for name, value in median.items()}))
    if pretend_s is not None:
        return 0
    fine = median["python_share"] <= BAR
    print(f"Python {median['python_share']:.1%} of the time, bar {BAR:.0%}: {'met' if fine else 'missed'}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
