"""Load on a server: an open loop at a rate, or a closed loop of so many clients; every request is kept.

In the open loop nothing waits for an answer, and all times count from when a request *should* have been sent:
a slow server cannot make the load lighter or its own figures better (coordinated omission). What the figures
mean is ``bench.figures``.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from spola.bench.exchange import Call, Sample, ask
from spola.bench.http import Pool, Target
from spola.core.errors import ConfigError
from spola.workload import Mix, arrivals, materialize

__all__ = ["Load", "Outcome", "calls_of", "drive", "served_model"]

_LATE = 30.0  # seconds to wait for the list of models


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: ``rate`` per second (open loop) with at most ``concurrency`` in flight if given, or
    without a rate ``concurrency`` clients that send the next when the last is answered. ``warmup`` requests
    go before and are not counted.
    """

    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0
    seed: int = 0
    timeout_s: float = 600.0
    warmup: int = 1

    def describe(self) -> str:
        if self.rate is None:
            return f"closed loop of {self.concurrency or 1} clients"
        kind = "Poisson" if self.burstiness == 1 else f"gamma (shape {self.burstiness:g})"
        most = f", at most {self.concurrency} in flight" if self.concurrency else ""
        return f"open loop, {kind} arrivals at {self.rate:g} per second{most}"


@dataclass(slots=True)
class Outcome:
    """All samples in the order of the mix. ``start`` and ``end`` as ``time.perf_counter()``; ``client_cpu``:
    this process's processor time over the time that passed.
    """

    samples: list[Sample]
    start: float
    end: float
    client_cpu: float


async def served_model(target: Target) -> str:
    """The first model that the server names. Raises ConfigError when it cannot be asked."""
    pool, body = Pool(target, _LATE), _Whole()
    try:
        status, _ = await pool.send(target.request("GET", "/models"), body)
    except (TimeoutError, OSError) as error:
        raise ConfigError(f"--url {target.url}: {error or 'no answer'}") from None
    finally:
        pool.close()
    try:
        name = msgspec.json.decode(bytes(body.data))["data"][0]["id"]
    except (msgspec.DecodeError, LookupError, TypeError):
        name = None
    if status != 200 or not isinstance(name, str):
        raise ConfigError(f"--url {target.url}: /v1/models answers HTTP {status} and no model: give --model")
    return name


class _Whole:
    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, data: bytes, at: float) -> None:
        self.data += data


def calls_of(
    mix: Mix,
    model: str,
    *,
    endpoint: str = "chat",
    ignore_eos: bool = True,
    temperature: float = 0.0,
    seed: int = 0,
    vocab: int | None = None,
    same_prompts: bool = False,
    extra: dict[str, Any] | None = None,
) -> list[Call]:
    """The requests of ``mix``, streamed with usage. Prompts begin differently in each run, so that no cache
    of an earlier one knows them, unless ``same_prompts``. With ``vocab`` they are token ids below it, of
    exact lengths (completions only). ``extra`` is added to every body.
    """
    nonce = "" if same_prompts else secrets.token_hex(4)
    calls = []
    for index, item in enumerate(mix.items):
        prompt: Any = materialize(item, index, nonce=nonce, seed=seed, vocab=vocab)
        body: dict[str, Any] = {"model": model, "max_tokens": item.output, "temperature": temperature}
        if endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        elif item.messages is not None:
            raise ConfigError("--endpoint completions: the dataset holds messages, which need chat")
        else:
            body["prompt"] = prompt
        if ignore_eos:
            body["ignore_eos"] = True
        body |= {"stream": True, "stream_options": {"include_usage": True}} | (extra or {})
        path = "/chat/completions" if endpoint == "chat" else "/completions"
        calls.append(Call(path, msgspec.json.encode(body)))
    return calls


async def drive(target: Target, calls: Sequence[Call], load: Load) -> Outcome:
    """Send ``calls`` as ``load`` says and wait for all answers."""
    pool = Pool(target, load.timeout_s)
    try:
        for call in calls[: load.warmup]:
            sample = await ask(pool, call, time.perf_counter())
            if sample.error:
                raise ConfigError(f"--url {target.url}: the request to warm up failed: {sample.error}")
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection would show up as latency of the server
        try:
            return await (_closed(pool, calls, load) if load.rate is None else _open(pool, calls, load))
        finally:
            gc.enable()
            gc.unfreeze()
    finally:
        pool.close()


async def _open(pool: Pool, calls: Sequence[Call], load: Load) -> Outcome:
    assert load.rate is not None
    offsets = arrivals(len(calls), load.rate, load.seed, load.burstiness)
    gate = asyncio.Semaphore(load.concurrency or len(calls))

    async def one(call: Call, intended: float) -> Sample:
        async with gate:
            return await ask(pool, call, intended)

    tasks = []
    start, cpu = time.perf_counter() + 0.01, time.process_time()
    for call, offset in zip(calls, offsets, strict=True):
        delay = start + offset - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(one(call, start + offset)))
    samples = list(await asyncio.gather(*tasks))
    return _outcome(samples, start, cpu)


async def _closed(pool: Pool, calls: Sequence[Call], load: Load) -> Outcome:
    samples: list[Sample | None] = [None] * len(calls)
    left = iter(range(len(calls)))
    start, cpu = time.perf_counter(), time.process_time()

    async def client() -> None:
        for index in left:
            samples[index] = await ask(pool, calls[index], time.perf_counter())

    await asyncio.gather(*(client() for _ in range(min(load.concurrency or 1, len(calls)))))
    done = [sample for sample in samples if sample is not None]
    return _outcome(done, start, cpu)


def _outcome(samples: list[Sample], start: float, cpu: float) -> Outcome:
    end = time.perf_counter()
    last = max((sample.end for sample in samples if not sample.error), default=end)
    busy = (time.process_time() - cpu) / max(end - start, 1e-9)
    return Outcome(samples, start, max(last, start), busy)
