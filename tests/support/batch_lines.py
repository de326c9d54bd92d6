"""Inputs of ``spola batch``."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

__all__ = ["chat", "completion", "mixed", "write_lines"]


def chat(id: str, text: str = "hi", **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8} | body
    return {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(id: str, prompt: str = "hi", **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 8} | body
    return {"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}


def mixed(n: int, seed: int = 0, tokens: int = 30) -> list[dict[str, Any]]:
    """Both endpoints, greedy and sampled with and without seed, priorities, and wrong ones among them."""
    rng = random.Random(seed)
    lines = []
    for i in range(n):
        make = rng.choice((chat, completion))
        line = make(f"line-{i}", "word " * rng.randint(1, 20), max_tokens=rng.randint(1, tokens))
        line["body"] |= rng.choice(({}, {"temperature": 1.0}, {"temperature": 0.5, "seed": i}))
        line["priority"] = rng.randint(-1, 1)
        if rng.random() < 0.05:
            line["body"]["max_tokens"] = 0
        lines.append(line)
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
