"""Send a server bodies that are wrong in every way, and see that it stays a server.

    python tools/fuzz_server.py [--bodies 5000] [--seed 1] [-m MODEL] [--backend null]

Starts ``spola serve`` and posts mutated bodies to every route that takes one. Fails when an answer is a 5xx,
none comes within 90 seconds, the server is gone, or its memory grows by over 5 MB after the first thousand.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

WARM = 1000
GROWTH = 5 << 20
TIMEOUT_S = 90

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
]
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
COMMON: dict[str, Any] = {
    "max_tokens": 4,
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "stream": False,
    "n": 1,
    "presence_penalty": 0.5,
}
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": 2, **COMMON}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "tools": [TOOL], "tool_choice": "auto"}),
    (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 8,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "a",
                    "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
                },
            },
        },
    ),
    ("/v1/completions", {"prompt": ["a", [5, 6]], "echo": True, "logprobs": 2, **COMMON}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 6, "structured_outputs": {"regex": "[ab]{3}"}}),
    ("/v1/responses", {"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 4, "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "system": "a"}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 3, "details": True, "truncate": 2}}),
    ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 3, "top_n_tokens": 2, "seed": 1}}),
    ("/", {"inputs": "a", "parameters": {"max_new_tokens": 3, "grammar": {"type": "regex", "value": "a"}}}),
    (
        "/completion",
        {"prompt": ["a", 5], "n_predict": 3, "n_probs": 2, "logit_bias": [[5, 1]], "stop": ["x"]},
    ),
    ("/api/chat", {"model": "smollm2", "messages": CHAT, "tools": [TOOL], "options": {"num_predict": 3}}),
    ("/api/generate", {"model": "smollm2", "prompt": "a", "format": "json", "options": {"num_ctx": 200}}),
    ("/api/embed", {"model": "smollm2", "input": ["a", "b"], "dimensions": 8, "truncate": True}),
    ("/api/show", {"model": "smollm2"}),
    ("/tokenize", {"prompt": "hello", "return_token_strs": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**80, -(2**70), 0.5, -0.0, 1e308, 5e-324,
    "", "a", "\x00", "\ud83d", "😸" * 50, "../../etc/passwd", "a" * 5000, "{{ 1 }}", "<|im_start|>", "((((",
    "[a-z]{1,99999}", [], [[]], [None], {}, {"": ""}, {"type": "text"}, {"$ref": "#"}, [[[[[[[["x"]]]]]]]],
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, ["a"] * 300, list(range(500)),
]  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside ``value``."""
    out = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        out += nodes(item, (*path, key))
    return out


def mutated(body: dict[str, Any], rng: random.Random) -> bytes:
    """``body`` with one to four things wrong, some of them not even JSON."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 4)):
        paths = nodes(body)
        if not paths:
            break
        *parents, last = rng.choice(paths)
        owner: Any = body
        for key in parents:
            owner = owner[key]
        kind = rng.random()
        if kind < 0.6:
            owner[last] = deepcopy(rng.choice(ODD))
        elif kind < 0.75:
            del owner[last]
        elif isinstance(owner, dict):
            name = rng.choice(["x", "n", "stream", "model", "grammar", "user", "priority", "timeout"])
            owner[name] = deepcopy(rng.choice(ODD))
    data = bytearray(json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))
    if rng.random() < 0.15:
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            if rng.random() < 0.5:
                data[at : at + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 3))
            else:
                data = data[:at] or data
    return bytes(data)


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmRSS"))


def start(model: str, backend: str) -> tuple[subprocess.Popen[str], int]:
    command = [
        sys.executable,
        "-m",
        "spola",
        "serve",
        "--port",
        "0",
        "--backend",
        backend,
        "-m",
        model,
        "--json",
    ]
    process = subprocess.Popen(
        [*command, "--max-model-len", "1024", "--log-format", "off"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not text.endswith("}\n") or text.count("{") != text.count("}"):
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        text += line
    return process, int(json.loads(text)["url"].rsplit(":", 1)[1].split("/")[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--backend", default="null")
    asked = parser.parse_args()
    process, port = start(asked.model, asked.backend)
    try:
        return run(process, port, asked.bodies, random.Random(asked.seed))
    finally:
        process.terminate()
        process.wait()


def run(process: subprocess.Popen[str], port: int, bodies: int, rng: random.Random) -> int:
    statuses: Counter[tuple[str, int]] = Counter()
    problems: list[str] = []
    slowest, warm = (0.0, ""), 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    for number in range(bodies):
        if number == WARM:
            warm = resident(process.pid)
        elif number > WARM and not number % WARM:
            print(f"after {number} bodies: {(resident(process.pid) - warm) / 2**20:+.1f} MB", flush=True)
        path, body = rng.choice(SEEDS)
        data = mutated(body, rng)
        began = time.monotonic()
        try:
            if not number % 50:  # a connection that was idle for long may have been closed
                connection.close()
            connection.request("POST", path, data)
            response = connection.getresponse()
            text = response.read()
            status = response.status
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            text, status = repr(error).encode(), 0
        slowest = max(slowest, (time.monotonic() - began, f"body {number} {path} {data[:200]!r}"))
        statuses[path, status] += 1
        if status >= 500 or status == 0 or b"internal error" in text:
            problems.append(f"body {number} {path} {status}: {data[:500]!r} -> {text[:300]!r}")
        if process.poll() is not None:
            problems.append(f"the server ended after body {number}")
            break
    connection.close()
    for (path, status), count in sorted(statuses.items()):
        print(f"{count:6}  {status}  {path}")
    if process.poll() is None and bodies > WARM:
        grown = resident(process.pid) - warm
        print(f"slowest answer {slowest[0]:.2f} s: {slowest[1]}")
        print(f"memory grew by {grown / 2**20:.1f} MB after body {WARM}")
        if grown > GROWTH:
            problems.append(f"memory grew by {grown} bytes")
    for problem in problems[:20]:
        print(problem)
    print(f"{len(problems)} problems in {sum(statuses.values())} bodies")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
