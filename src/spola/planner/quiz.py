"""Questions about LLM inference: concepts from the glossary, and sums that ``planner.textbook`` grades.

A seed gives the same questions again. Asks nothing and prints nothing; that is ``spola quiz``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from spola.glossary import Glossary, Lang, Term
from spola.planner import textbook

__all__ = ["Question", "grade", "questions"]

OPTIONS = 4
TOLERANCE = 0.03  # of a number: what rounding in one's head may cost
SUMS = 0.6  # the share of questions that are computed

_BITS = {"FP32": 32, "FP16": 16, "INT8": 8, "INT4": 4}


class Question(msgspec.Struct, frozen=True):
    """``options`` of a "choice"; a "number" has a ``unit`` instead. ``worked`` is how "
    "the answer comes out."""

    kind: Literal["choice", "number"]
    text: str
    answer: str | float
    worked: str
    options: tuple[str, ...] = ()
    unit: str = ""


class _Texts:
    """Both languages of a sum's text, chosen once."""

    def __init__(self, lang: Lang) -> None:
        self._italian = lang == "it"

    def __call__(self, en: str, it: str) -> str:
        return it if self._italian else en


_Maker = Callable[[random.Random, _Texts], Question]


def questions(n: int, lang: Lang, seed: int) -> list[Question]:
    """``n`` questions, no sum twice until all have come."""
    draw = random.Random(seed)
    glossary, say = Glossary(), _Texts(lang)
    sums: list[_Maker] = []
    found = []
    for i in range(n):
        if int((i + 1) * SUMS) > int(i * SUMS):
            sums = sums or draw.sample(_SUMS, len(_SUMS))
            found.append(sums.pop()(draw, say))
        else:
            found.append(_concept(draw, glossary, lang, say))
    return found


def grade(question: Question, given: str) -> bool:
    """Whether ``given`` is right: the option, or its number from 1; a number within 3 %, unit or not."""
    text = given.strip().casefold()
    if question.kind == "choice":
        place = question.options.index(str(question.answer)) + 1
        return text in (str(question.answer).casefold(), str(place))
    number = re.match(r"[-+]?[\d.,]+(?:e[-+]?\d+)?", text)
    if number is None:
        return False
    assert isinstance(question.answer, (int, float))
    allowed = abs(question.answer) * TOLERANCE
    return any(abs(value - question.answer) <= allowed for value in _readings(number[0]))


def _readings(text: str) -> list[float]:
    """What a number may mean: a comma separates decimals in one language, thousands in the other."""
    values = []
    for decimal, thousands in ((".", ","), (",", ".")):
        plain = text.replace(thousands, "").replace(decimal, ".")
        try:
            values.append(float(plain))
        except ValueError:
            continue
    return values


def _concept(draw: random.Random, glossary: Glossary, lang: Lang, say: _Texts) -> Question:
    terms = draw.sample([term for term in glossary.terms if _hides(term, lang)], OPTIONS)
    right = draw.choice(terms)
    return Question(
        kind="choice",
        text=say("Which word is this? ", "Quale parola è? ") + right.definition(lang),
        options=tuple(term.name(lang) for term in terms),
        answer=right.name(lang),
        worked=f"{right.en} / {right.it}. {right.sentence}",
    )


def _hides(term: Term, lang: Lang) -> bool:
    """Whether the definition does not give its word away."""
    names = [term.en, term.it, *term.aka]
    text = term.definition(lang).casefold()
    return not any(name.casefold() in text for name in names)


def _number(text: str, answer: float, unit: str, worked: str) -> Question:
    return Question(kind="number", text=text, answer=answer, unit=unit, worked=worked)


def _weights(draw: random.Random, say: _Texts) -> Question:
    billions, kind = draw.choice([1, 3, 7, 8, 13, 34, 70]), draw.choice(list(_BITS))
    size = textbook.weight_bytes(billions * 1e9, _BITS[kind]) / 1e9
    return _number(
        say(
            f"A model has {billions}B parameters in {kind}. How many GB are its weights?",
            f"Un modello ha {billions}B parametri in {kind}. Quanti GB occupano i pesi?",
        ),
        size,
        "GB",
        f"{billions}e9 x {_BITS[kind]} bit / 8 = {size:g} GB",
    )


def _kv_token(draw: random.Random, say: _Texts) -> Question:
    layers, heads = draw.choice([16, 24, 32, 40]), draw.choice([4, 8, 32])
    size = textbook.kv_bytes_per_token(layers, heads, 128)
    return _number(
        say(
            f"{layers} layers with {heads} KV heads of 128, in FP16: how many bytes of KV cache "
            "does a token take?",
            f"{layers} strati con {heads} teste KV da 128, in FP16: quanti byte di cache KV occupa un token?",
        ),
        size,
        "bytes",
        f"2 x {layers} x {heads} x 128 x 2 = {size:g}",
    )


def _kv_all(draw: random.Random, say: _Texts) -> Question:
    tokens, requests = draw.choice([2048, 4096, 8192]), draw.choice([1, 4, 8, 16])
    per_token = textbook.kv_bytes_per_token(32, 32, 128)
    size = textbook.kv_bytes(per_token, tokens, requests) / 2**30
    return _number(
        say(
            f"A model takes 512 KiB of KV cache per token. {requests} requests of {tokens} tokens: "
            "how many GiB?",
            f"Un modello usa 512 KiB di cache KV per token. {requests} richieste da {tokens} "
            "token: quanti GiB?",
        ),
        size,
        "GiB",
        f"512 KiB x {tokens} x {requests} = {size:g} GiB",
    )


def _decode(draw: random.Random, say: _Texts) -> Question:
    size, rate = draw.choice([3.5, 7, 14, 26]), draw.choice([50, 100, 400, 1000, 2000])
    speed = textbook.decode_tok_s(size * 1e9, rate * 1e9)
    return _number(
        say(
            f"{size:g} GB of weights, {rate} GB/s of memory bandwidth, one request: "
            "how many tokens a second can decode reach at most?",
            f"{size:g} GB di pesi, {rate} GB/s di banda di memoria, una richiesta: "
            "quanti token al secondo può raggiungere al massimo la decodifica?",
        ),
        speed,
        "tok/s",
        f"{rate} / {size:g} = {speed:.3g} tok/s",
    )


def _latency(draw: random.Random, say: _Texts) -> Question:
    ttft, tpot, tokens = draw.choice([200, 400, 800]), draw.choice([20, 40, 50]), draw.choice([51, 101, 201])
    total = textbook.latency_s(ttft / 1000, tpot / 1000, tokens)
    return _number(
        say(
            f"TTFT {ttft} ms, TPOT {tpot} ms, {tokens} tokens: how many seconds is the latency?",
            f"TTFT {ttft} ms, TPOT {tpot} ms, {tokens} token: quanti secondi è la latenza?",
        ),
        total,
        "s",
        f"{ttft} ms + {tpot} ms x {tokens - 1} = {total:g} s",
    )


def _concurrency(draw: random.Random, say: _Texts) -> Question:
    free, per_token, tokens = (
        draw.choice([8, 16, 40]),
        draw.choice([128, 256, 512]),
        draw.choice([2048, 4096]),
    )
    one = textbook.kv_bytes(per_token * 1024, tokens)
    fit = int(free * 2**30 // one)
    return _number(
        say(
            f"{free} GiB are left for a KV cache of {per_token} KiB per token. "
            f"How many requests of {tokens} tokens fit?",
            f"Restano {free} GiB per una cache KV da {per_token} KiB per token. "
            f"Quante richieste da {tokens} token ci stanno?",
        ),
        fit,
        "",
        f"{free} GiB / ({per_token} KiB x {tokens}) = {fit}",
    )


def _intensity(draw: random.Random, say: _Texts) -> Question:
    batch, kind = draw.choice([1, 4, 16, 64]), draw.choice(["FP16", "INT8", "INT4"])
    value = textbook.arithmetic_intensity(batch, _BITS[kind] / 8)
    return _number(
        say(
            f"A decode step of {batch} requests, weights in {kind}: how many operations for each "
            "byte of weights?",
            f"Un passo di decodifica con {batch} richieste e pesi in {kind}: quante operazioni per "
            "byte di pesi?",
        ),
        value,
        "ops/byte",
        f"2 x {batch} / {_BITS[kind] / 8:g} = {value:g}",
    )


def _ridge(draw: random.Random, say: _Texts) -> Question:
    peak, rate = draw.choice([1, 4, 100, 1000]), draw.choice([50, 200, 1000, 2000])
    value = textbook.ridge(peak * 1e12, rate * 1e9)
    return _number(
        say(
            f"A machine does {peak} TFLOP/s and reads {rate} GB/s. From how many operations per byte "
            "is arithmetic the limit?",
            f"Una macchina fa {peak} TFLOP/s e legge {rate} GB/s. Da quante operazioni per byte "
            "limita il calcolo?",
        ),
        value,
        "ops/byte",
        f"{peak}e12 / {rate}e9 = {value:g}",
    )


def _little(draw: random.Random, say: _Texts) -> Question:
    rate, latency = draw.choice([2, 5, 10]), draw.choice([3, 4, 8])
    value = textbook.littles_law(rate, latency)
    return _number(
        say(
            f"{rate} requests arrive a second and each takes {latency} s. How many are in the "
            "server on average?",
            f"Arrivano {rate} richieste al secondo e ognuna dura {latency} s. Quante sono in media "
            "nel server?",
        ),
        value,
        "",
        f"{rate} x {latency} = {value:g}",
    )


_SUMS: tuple[_Maker, ...] = (
    _weights,
    _kv_token,
    _kv_all,
    _decode,
    _latency,
    _concurrency,
    _intensity,
    _ridge,
    _little,
)
