"""Structured output against a validator: random schemas, the JSON-Schema-Test-Suite, schemas of a folder.

Every schema is compiled or refused with the place of what is not supported; for those compiled, answers are
drawn from the grammar and validated with ``jsonschema``, and the suite's invalid instances must not be in it.
Counts by keyword and the refusals by reason are printed, and how many schemas llguidance alone, without the
limits and the checks of this project, would have compiled. The suite is json/tests in the source distribution
of ``jsonschema``; ``--schemas`` is any folder with schemas in files.
Exits 1 when an answer does not validate, when a schema is refused that llguidance compiles, or when fewer
than 75 % of the random schemas are taken.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from llguidance import LLMatcher

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from spola.core.errors import RequestError  # noqa: E402
from spola.load.model import open_model  # noqa: E402
from spola.load.resolve import resolve_model  # noqa: E402
from spola.text.grammar import Grammar, Grammars, json_source  # noqa: E402
from spola.text.tokenizer import Tokenizer  # noqa: E402
from support.schemas import Walker, random_schema  # noqa: E402

DRAFTS = {
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


class Report:
    """What came of the schemas, and what is wrong."""

    def __init__(self, tokenizer: Tokenizer, answers: int) -> None:
        self.grammars = Grammars(tokenizer)
        self.tokenizer = tokenizer
        self.walker = Walker(tokenizer)
        self.answers = answers
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.alone = 0  # compiled by llguidance alone
        self.drawn = self.unfinished = self.instances = 0
        self.wrong: list[str] = []

    def schema(self, name: str, schema: Any, rng: random.Random, tests: list[dict[str, Any]]) -> bool:
        """One schema; False when it is refused."""
        keywords = sorted(_keywords(schema)) or ["(none)"]
        compiles = self._compiles(schema)
        self.alone += compiles
        try:
            grammar = self.grammars.compile([json_source(schema, "schema")], "schema")
        except RequestError as error:
            self.refused.update(keywords)
            self.reasons[_reason(str(error))] += 1
            if compiles:
                self.wrong.append(f"{name}: refused, though llguidance compiles it: {error}")
            if "at /" not in str(error) and name.startswith("random"):
                self.wrong.append(f"{name}: refused without a pointer: {error}")
            return False
        self.taken.update(keywords)
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        check = validator(schema, format_checker=validator.FORMAT_CHECKER)
        for _ in range(self.answers):
            self._answer(name, schema, grammar, check, rng)
        for test in tests:
            self.instances += 1
            if not test["valid"] and self._holds(grammar, test["data"]):
                self.wrong.append(f"{name}: allows {json.dumps(test['data'])[:80]}: {test['description']}")
        return True

    def _compiles(self, schema: Any) -> bool:
        """Whether llguidance compiles ``schema`` as it is, with its own limits."""
        text = json.dumps({"grammars": [{"json_schema": schema}]})
        return not LLMatcher(self.grammars._tokens(), text, log_level=0).is_error()

    def _answer(self, name: str, schema: Any, grammar: Grammar, check: Any, rng: random.Random) -> None:
        text = self.walker.draw(grammar, rng)
        if text is None:
            self.unfinished += 1
            return
        self.drawn += 1
        try:
            check.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            what = str(error).splitlines()[0][:120]
            self.wrong.append(f"{name}: {text[:120]!r}: {what} :: {json.dumps(schema)[:200]}")

    def _holds(self, grammar: Grammar, value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        guard = grammar.guard()
        try:
            kept = [guard.accept((token,)) for token in self.tokenizer.encode(text, add_bos=False)]
        except RuntimeError:
            return False
        if any(answer is not None for answer in kept[:-1]):
            return False
        return kept[-1] is not None or guard.complete


def _reason(said: str) -> str:
    """A refusal without what is this schema's own."""
    text = re.sub(r"^schema: (at \S*: )?", "", said)
    return re.sub(r"(: |')[^ ']*[/:\\^].*", r"\1...", text)[:90]


def _real(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*.json")):
        try:
            yield str(path.relative_to(folder)), json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            print(f"{path}: no JSON", file=sys.stderr)


def _keywords(schema: Any) -> set[str]:
    out: set[str] = set()
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("properties", "patternProperties", "$defs", "definitions") and isinstance(
                value, dict
            ):
                out |= {name}.union(*(_keywords(item) for item in value.values()))
            elif name not in ("const", "enum", "default", "examples"):
                out |= {name} | _keywords(value)
            else:
                out.add(name)
    elif isinstance(schema, list):
        out = out.union(*(_keywords(item) for item in schema))
    return out - {"$schema"}


def _suite(folder: Path) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for draft, uri in DRAFTS.items():
        files = [
            *sorted((folder / draft).glob("*.json")),
            *sorted((folder / draft / "optional/format").glob("*.json")),
        ]
        for path in files:
            for case in json.loads(path.read_text(encoding="utf-8")):
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                yield f"{draft}/{path.stem}: {case['description']}", schema, case["tests"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=200, help="random schemas")
    parser.add_argument("--answers", type=int, default=3, help="answers drawn from each")
    parser.add_argument("--suite", type=Path, help="folder with draft2020-12 and draft7")
    parser.add_argument("--schemas", type=Path, help="folder with schemas in .json files, at any depth")
    parser.add_argument("--every", type=int, default=1, help="take one of so many of these")
    parser.add_argument("--model", help="whose tokenizer; default: smollm2")
    given = parser.parse_args()
    with open_model(resolve_model(given.model)) as model:
        report = Report(model.tokenizer, given.answers)
    taken = 0
    for seed in range(given.random):
        rng = random.Random(seed)
        taken += report.schema(f"random {seed}", random_schema(rng), rng, [])
    suite = [0, 0]
    for name, schema, tests in _suite(given.suite) if given.suite else ():
        suite[report.schema(name, schema, random.Random(name), tests)] += 1
    real = [0, 0]
    for place, (name, schema) in enumerate(_real(given.schemas) if given.schemas else ()):
        if place % given.every == 0:
            real[report.schema(name, schema, random.Random(name), [])] += 1
    print(f"{'keyword':28} {'taken':>6} {'refused':>8}")
    for keyword in sorted(report.taken | report.refused):
        print(f"{keyword:28} {report.taken[keyword]:6} {report.refused[keyword]:8}")
    print("\nrefused, by reason")
    for reason, count in report.reasons.most_common(40):
        print(f"{count:6}  {reason}")
    print(f"\nrandom schemas: {taken} of {given.random} taken")
    print(f"test suite: {suite[1]} schemas taken, {suite[0]} refused; {report.instances} instances tried")
    print(f"schemas of the folder: {real[1]} taken, {real[0]} refused")
    print(f"of all: {report.alone} compiled by llguidance alone, {taken + suite[1] + real[1]} taken")
    print(f"answers: {report.drawn} drawn and validated, {report.unfinished} not finished in 300 tokens")
    print(f"wrong: {len(report.wrong)}")
    for line in report.wrong[:50]:
        print("  " + line)
    return int(bool(report.wrong) or taken < 0.75 * given.random)


if __name__ == "__main__":
    sys.exit(main())
