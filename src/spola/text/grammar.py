"""Grammars: what an answer may be, compiled to a matcher that says which token may come next.

The engine of it is llguidance (https://github.com/guidance-ai/llguidance): JSON Schema, regular expressions
and Lark grammars over token bytes. Here are what it is given, its limits, and its errors in our words.
Nothing is dropped in silence: what cannot be enforced is refused. Compiling takes milliseconds, rarely
seconds, for which the thread that asks waits; ``guard`` of the result is cheap. The library is imported at
the first need: a tenth of a second.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams
from spola.text.compile_lane import Lane
from spola.text.grammar_cache import GrammarCache
from spola.text.grammar_guard import GrammarGuard
from spola.text.grammar_trial import needs_trial, try_out
from spola.text.regex_cost import check_regex
from spola.text.schema_walk import fault, schema_text
from spola.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["Grammar", "Grammars", "Source", "json_source", "lark_source", "source_of"]

MAX_GRAMMAR = 64 * 1024  # characters
COMPILE_S = 5.0  # processor time of one compilation
REHEARSED = 4  # masks computed before a grammar is taken
FIRST_S = 0.5  # processor time of the first of these, which all answers share, and of
MASK_S = 0.05  # each later one, which is the engine's time then
DEAR_S = 0.1  # a refusal that took longer to find is kept
CACHED = 64  # compiled grammars kept,
CACHED_S = 5.0  # and the processor time that they may have taken together: about 0.5 GB at the worst
# One blank, or a new line with an indentation, between the tokens of JSON: no runs of them.
_ARGUMENTS = re.compile(r"^arguments(\d+)$")  # names of the grammars of tools' arguments
BLANKS = r"\n[ ]{0,8}|[ ]"

Source = dict[str, Any]
Error = Callable[[str], RequestError]


class Grammar:
    """A compiled grammar. Immutable; ``guard`` gives a fresh matcher at its beginning. ``compile_s``: the
    processor time that it took.
    """

    def __init__(self, matcher: LLMatcher, compile_s: float = 0.0) -> None:
        self.compile_s = compile_s
        self._matcher = matcher
        self._lock = threading.Lock()

    def guard(self) -> GrammarGuard:
        with self._lock:
            return GrammarGuard(self._matcher.deep_copy())


class Grammars:
    """Compiles for one tokenizer. Threads may share it.

    The token table is built at the first need (a fraction of a second, in which no other Python thread
    runs), or by ``warm``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table: LLTokenizer | None = None
        self._building = threading.Lock()
        # Refusals that took long to find are in it too.
        self._cache: GrammarCache[Grammar] = GrammarCache(CACHED, CACHED_S)
        self._plain, self._dear = Lane(2), Lane(1)

    def warm(self) -> None:
        """Build the token table, if it is not there."""
        self._tokens()

    def of(self, wanted: StructuredOutputsParams, param: str = "structured_outputs") -> Grammar:
        """The compiled form of ``wanted``. Raises RequestError, with ``param`` as its field."""
        return self.compile([source_of(wanted, param)], param)

    def compile(self, sources: Iterable[Source], param: str) -> Grammar:
        """Compile named sources, the first of which is where an answer begins. Raises RequestError."""
        listed = list(sources)
        key = json.dumps({"grammars": listed}, ensure_ascii=False), param
        found, new = self._cache.enter(key)
        if not new:  # made, or being made for somebody else
            refused = found.exception()
            if isinstance(refused, RequestError):
                raise _again(refused)  # the one that is kept would gather everybody's frames
            return found.result()
        started = time.monotonic()
        try:
            grammar = self._made(listed, *key)
        except BaseException as error:
            refusal = _again(error) if isinstance(error, RequestError) else None
            if refusal is None or refusal.status != 400 or time.monotonic() - started < DEAR_S:
                self._cache.drop(key)
            found.set_exception(error if refusal is None else refusal)
            raise
        found.set_result(grammar)
        self._cache.keep(key, grammar.compile_s)
        return grammar

    def _made(self, sources: list[Source], text: str, param: str) -> Grammar:
        schemas = [source["json_schema"] for source in sources if "json_schema" in source]
        dear = [schema for schema in schemas if needs_trial(schema, json.dumps(schema))]

        def work() -> Grammar:
            for schema in dear:
                try_out(schema, param)
            started = time.thread_time()
            try:
                return Grammar(self._compiled(text, param), time.thread_time() - started)
            except RequestError as error:
                # Its frames hold the matcher, up to hundreds of MB, for as long as anybody holds the error.
                raise error.with_traceback(None) from None

        return (self._dear if dear else self._plain).run(work)

    def _compiled(self, text: str, param: str) -> LLMatcher:
        from llguidance import LLMatcher

        started = time.thread_time()
        matcher = LLMatcher(self._tokens(), text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise self._refusal(matcher.get_error(), text, param)
        if time.thread_time() - started > COMPILE_S:
            raise RequestError(f"{param}: the grammar takes too long to compile", param=param)
        _rehearse(matcher.deep_copy(), param)
        return matcher

    def _refusal(self, said: str, text: str, param: str) -> RequestError:
        """The compiler's complaint as an error; of several schemas, about the one at fault."""
        from llguidance import LLMatcher

        for source in json.loads(text)["grammars"]:
            schema = source.get("json_schema")
            if schema is None:
                continue
            alone = LLMatcher(
                self._tokens(), json.dumps({"grammars": [source]}), log_level=0, limits=_limits()
            )
            if alone.is_error():
                place = _ARGUMENTS.sub(r"tools[\1].function.parameters", source["name"])
                where = place if place != source["name"] else param
                return RequestError(f"{where}: {fault(schema, alone.get_error())}", param=where)
        first = next((line for line in said.splitlines() if line.startswith("error")), said)
        return RequestError(f"{param}: {' '.join(first.split())[:400]}", param=param)

    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        with self._building:
            if self._table is None:
                table: Any = _Table(self._tokenizer)
                self._table = LLTokenizer(table, eos_token=_ends(self._tokenizer))
            return self._table


class _Table:
    """The tokenizer as llguidance wants to see it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        n = tokenizer.vocab_size
        padding = tokenizer.padding_ids
        self.tokens = [b"" if i in padding else tokenizer.token_bytes(i) for i in range(n)]
        self.special_token_ids = [i for i in range(n) if tokenizer.is_special(i)]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = _ends(tokenizer)[0]
        if self.eos_token_id == n:  # a model without an end: one that it can never draw
            self.tokens.append(b"<|end|>")
            self.special_token_ids.append(n)

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_bos=False, add_eos=False)


def _ends(tokenizer: Tokenizer) -> list[int]:
    return sorted(tokenizer.eos_ids) or [tokenizer.vocab_size]


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=20_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _rehearse(matcher: LLMatcher, param: str) -> None:
    """Compute the first masks here, not on the engine's thread, and refuse what is dear or leads nowhere."""
    for place in range(REHEARSED):
        started = time.thread_time()
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise RequestError(f"{param}: {_reason(matcher.get_error())}", param=param)
        if time.thread_time() - started > (MASK_S if place else FIRST_S):
            raise RequestError(f"{param}: the grammar takes too long to follow", param=param)
        token = _first_bit(mask)
        if token < 0:
            raise RequestError(f"{param}: the grammar allows no answer", param=param)
        if not matcher.consume_token(token):
            raise RequestError(f"{param}: {_reason(matcher.get_error())}", param=param)
        if matcher.is_stopped():
            return


def _again(error: RequestError) -> RequestError:
    """The same refusal for somebody else: an exception is raised once."""
    return RequestError(
        str(error),
        param=error.param,
        code=error.code,
        status=error.status,
        retry_after=error.retry_after,
    )


def _first_bit(mask: bytes) -> int:
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1


def _reason(said: str) -> str:
    text = " ".join(said.replace("<non-verbose/>", "").split())[:300]
    if text.startswith("NoExtension"):
        return "the grammar allows no answer"
    return f"the grammar costs too much or is not supported: {text}"


def json_source(schema: Any, param: str, *, blanks: bool = True, name: str = "answer") -> Source:
    """A JSON Schema (decoded, or its text) as a source. Raises RequestError with the JSON pointer."""

    def error(what: str) -> RequestError:
        return RequestError(f"{param}: {what}", param=param)

    checked = json.loads(schema_text(schema, error))
    if "x-guidance" in checked:
        raise error("at /x-guidance: this keyword is not for requests")
    options: dict[str, Any] = {"whitespace_pattern": BLANKS} if blanks else {"whitespace_flexible": False}
    return {"name": name, "json_schema": {**checked, "x-guidance": options}}


def lark_source(text: str, name: str = "answer") -> Source:
    return {"name": name, "lark_grammar": text}


def source_of(wanted: StructuredOutputsParams, param: str) -> Source:
    """``wanted`` as a source for ``Grammars.compile``. Raises RequestError naming ``param``."""

    def error(what: str) -> RequestError:
        return RequestError(f"{param}: {what}", param=param)

    blanks = not wanted.disable_any_whitespace
    match wanted.kind:
        case "json":
            return json_source(wanted.json, param, blanks=blanks)
        case "json_object":
            return json_source({"type": "object"}, param, blanks=blanks)
        case "regex":
            assert wanted.regex is not None
            return regex_source(wanted.regex, error)
        case "choice":
            assert wanted.choice is not None
            if sum(map(len, wanted.choice)) > MAX_GRAMMAR:
                raise error(f"the choices have more than {MAX_GRAMMAR} characters")
            return lark_source("start: " + " | ".join(json.dumps(text) for text in wanted.choice))
    assert wanted.grammar is not None
    return grammar_source(wanted.grammar, error)


def regex_source(regex: str, error: Error, name: str = "answer") -> Source:
    """A regular expression for the whole answer as a source."""
    from llguidance import LLMatcher

    check_regex(regex, error)
    source: Source = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]
    return {**source, "name": name}


def grammar_source(text: str, error: Error) -> Source:
    """A grammar in Lark or GBNF form as a source."""
    from llguidance.gbnf_to_lark import any_to_lark

    if len(text) > MAX_GRAMMAR:
        raise error(f"the grammar has more than {MAX_GRAMMAR} characters")
    try:
        return lark_source(any_to_lark(text))
    except Exception as reason:  # whatever the converter makes of a text that is no grammar
        said = " ".join(str(reason).split())[:300]
        raise error(f"this is no grammar in Lark or GBNF form: {said}") from None
