"""Decode speed with and without drafts, one request at a time, on text that repeats its prompt and on prose.

Every round answers each prompt once without drafts and once with each proposer, in turn, on one engine each;
the answers must be equal. The figure of a proposer is the median over rounds of its speed over that without
drafts in the same round; ``first`` is that of the first round, in which ``suffix`` has seen no answer yet.
Writes speculation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from spola.core.params import SamplingParams
from spola.runtime.llm import LLM

LETTER = """Dear members of the garden club,
Our spring meeting will be held on Saturday, the 14th of April, at 10 in the morning, in the green house
behind the library. Please bring gloves, a small spade and the seeds that you would like to exchange. Mrs.
Alvarez will show us how to graft apple trees, and Mr. Thornton will talk about the water barrels that we
bought last year. After the talk there will be tea and cake. If you cannot come, please write to the
secretary before Thursday, so that we know how many chairs we need.
With kind regards,
The committee"""
CODE = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def peek(self):
        return self.items[-1]

    def is_empty(self):
        return len(self.items) == 0

    def size(self):
        return len(self.items)
"""
COPY = [
    f"Repeat the following letter exactly, word for word:\n\n{LETTER}",
    f"Write this code again, exactly as it is:\n\n```python\n{CODE}```",
    f"Correct the spelling of this letter and print all of it:\n\n{LETTER}",
]
PROSE = [
    "Write a story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain how volcanoes form, in plain words.",
    "Describe a walk through an old town in autumn.",
]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="default: smollm2")
    parser.add_argument("-o", "--output", type=Path, default=Path("speculation.json"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kinds", type=lambda t: t.split(","), default=["ngram", "suffix"])
    args = parser.parse_args(argv)
    kinds = ["off", *args.kinds]
    llms = {kind: LLM(args.model, threads=args.threads, speculate=kind, max_model_len=1024) for kind in kinds}
    result: dict[str, Any] = {"load_average": os.getloadavg()[0], "rounds": args.rounds}
    try:
        for name, prompts in (("copy", COPY), ("prose", PROSE)):
            result[name] = measure(llms, prompts, args)
            print(name, json.dumps(result[name]), file=sys.stderr)
    finally:
        for llm in llms.values():
            llm.close()
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def measure(llms: dict[str, LLM], prompts: list[str], args: argparse.Namespace) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {kind: [] for kind in llms}
    drafted, accepted = dict.fromkeys(llms, 0), dict.fromkeys(llms, 0)
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens)
    for _ in range(args.rounds):
        texts: dict[str, list[str]] = {}
        for kind, llm in llms.items():
            tokens = seconds = 0.0
            for prompt in prompts:
                out = llm.chat([{"role": "user", "content": prompt}], params)[0]
                texts.setdefault(kind, []).append(out.outputs[0].text)
                timing = out.outputs[0].timing
                assert timing is not None
                assert timing.ttft_s is not None
                tokens += len(out.outputs[0].token_ids) - 1
                seconds += timing.latency_s - timing.ttft_s
            speeds[kind].append(tokens / seconds)
        if any(other != texts["off"] for other in texts.values()):
            raise SystemExit("an answer with drafts differs from the one without")
    for kind, llm in llms.items():
        stats = llm.service.loop._engine.scheduler.stats
        drafted[kind], accepted[kind] = stats.draft_tokens, stats.accepted_tokens
    return {
        kind: {
            "tok_s": statistics.median(each),
            "over_off": statistics.median(a / b for a, b in zip(each, speeds["off"], strict=True)),
            "first": each[0] / speeds["off"][0],
            "drafted_so_far": drafted[kind],
            "accepted_so_far": accepted[kind],
        }
        for kind, each in speeds.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
