"""Inter-token latency of running streams while others send hostile grammars, expressions and schemas.

    python tools/experiments/hostile_forms.py [-m MODEL] [--streams 8] [--tokens 250] [--rounds 5] [-o FILE]

In turn, ``--rounds`` times, so many streams with so many tokens each: alone; beside two clients that ask for
short answers in a simple form, one after the other without a pause; beside two clients that send hostile
forms in the same way. Every form is sent once only (it has a number in it), so that no refusal is remembered.
Streams say one word again and again, as a token that is half a character gives no event. Figures are p50, p99
and the longest of all gaps of a phase, as medians over the rounds; and what became of the hostile requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from started import started

from spola.bench.exchange import Call, ask
from spola.bench.figures import gaps
from spola.bench.http import Pool, Target
from spola.core.quantiles import describe

PHASES = ("alone", "simple forms", "hostile forms")
REGEXES = (
    "(a{1000}){1000}",
    "(a?){500}a{500}",
    "(.*a){200}",
    "(.*a){20}b",
    ".*a.{200}",
    "(a|b)*a(a|b){14}",
    "((a{1,50}){1,50}){1,2}",
    r"\w{1,2000}",
    r"\p{L}{1,300}",
    ".{4000}",
    r"(\w+\s){1,400}",
    "(x+x+)+y",
    "(" * 150 + ")" * 150,
    "|".join(f"x{i}y" for i in range(1500)),
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"properties": {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,20}}{i}$"} for i in range(500)}},
    {"allOf": [{"enum": [f"v{i}" for i in range(2000)]}] * 8},
    {"anyOf": [{"properties": {f"k{i}": {"type": "string"}}, "required": [f"k{i}"]} for i in range(400)]},
    {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.*"} for i in range(16)]},
    {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.{{5}}"} for i in range(12)]},
    {"type": "string", "maxLength": 200_000},
    {"properties": {f"o{i}": {"properties": {f"p{i}_{j}": {} for j in range(400)}} for i in range(20)}},
    {
        "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {}},
        "$ref": "#/$defs/d0",
    },
)
GRAMMARS = (
    "start: " + '("a" | "b")? ' * 3000,
    'start: s\ns: s s | "a" |',
    "start: A{1,1000}\nA: /[a-z]{1,500}/",
    "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(20)) + 'T20: "a"',
    "start: t0\n" + "".join(f"t{i}: t{i + 1} t{i + 1}\n" for i in range(40)) + 't40: "a" | "b"',
)


def hostile() -> Iterator[dict[str, Any]]:
    """Forms without end, no two the same."""
    for number in itertools.count():
        for regex in REGEXES:
            yield {"guided_regex": f"{regex}|z{number}"}
        for schema in SCHEMAS:
            yield {"guided_json": {"title": str(number), **schema}}
        for grammar in GRAMMARS:
            yield {"guided_grammar": f"{grammar}\n// {number}"}


def simple() -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        yield {"guided_regex": f"[a-c]{{2}}{number}"}


def call(words: str, tokens: int, **fields: Any) -> Call:
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
    return Call("/chat/completions", json.dumps(body).encode())


async def send(pool: Pool, forms: Iterator[dict[str, Any]], done: Counter[str], took: list[float]) -> None:
    """One request after the other, until cancelled."""
    for form in forms:
        began = time.perf_counter()
        sample = await ask(pool, call("a word", 4, **form), began)
        took.append(time.perf_counter() - began)
        done[sample.error.partition(":")[0] or "answered"] += 1


async def phase(
    url: str, asked: argparse.Namespace, word: int, forms: Iterator[dict[str, Any]] | None
) -> dict[str, Any]:
    """Gaps in milliseconds of all streams, those counted between whose ends all of them ran."""
    pool, done, took = Pool(Target(url)), Counter[str](), list[float]()
    try:
        bias = {"ignore_eos": True, "logit_bias": {str(word): 100}}
        now = time.perf_counter
        streams = [
            asyncio.create_task(ask(pool, call(f"{i} on and on", asked.tokens, **bias), now()))
            for i in range(asked.streams)
        ]
        others = [asyncio.create_task(send(pool, forms, done, took)) for _ in range(2)] if forms else []
        samples = [await stream for stream in streams]
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    finally:
        pool.close()
    if failed := [sample.error for sample in samples if sample.error]:
        raise SystemExit(f"a stream failed: {failed[0]}")
    begin = max(sample.events[0] for sample in samples)
    last = min(sample.end for sample in samples)
    found = [
        1e3 * gap for s in samples for gap, at in zip(gaps(s), s.events) if begin <= at and at + gap <= last
    ]
    return {"gaps": describe(found), "requests": dict(done), "took": describe(took)}


def told(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds of the figures of each phase, and the requests of all of them."""
    out: dict[str, Any] = {}
    for name, found in rounds.items():
        row = {
            key: statistics.median(one["gaps"][key] for one in found)
            for key in ("mean", "p50", "p95", "p99", "max")
        }
        row["longest of all"] = max(one["gaps"]["max"] for one in found)
        requests = sum((Counter(one["requests"]) for one in found), Counter())
        longest = max((one["took"]["max"] or 0.0 for one in found), default=0.0)
        out[name] = {"gaps_ms": row, "requests": dict(requests), "longest_request_s": longest}
    return out


def a_word(model: str) -> int:
    """The id of a token that is a word."""
    spola = [sys.executable, "-m", "spola", "tokenize", " the", "--no-bos", "--json", "-m", model]
    return int(json.loads(subprocess.run(spola, check=True, capture_output=True).stdout)["ids"][-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--out", type=Path, help="all figures as JSON")
    asked = parser.parse_args()
    bad, good = hostile(), simple()
    forms = dict(zip(PHASES, (None, good, bad)))
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in PHASES}
    word = a_word(asked.model)
    options = ("--max-seqs", str(2 * asked.streams), "--max-model-len", "2048")
    with started(asked.model, *options) as url:
        asyncio.run(phase(url, asked, word, good))  # to warm up: the token table of grammars is built once
        for _ in range(asked.rounds):
            for name in PHASES:
                rounds[name].append(asyncio.run(phase(url, asked, word, forms[name])))
    result = told(rounds)
    print(json.dumps(result, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps({"told": result, "rounds": rounds}, indent=1))
    if not any(error.startswith("HTTP 400") for error in result["hostile forms"]["requests"]):
        print("void: no hostile form was refused while the streams ran; raise --tokens")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
