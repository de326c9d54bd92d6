"""From logits to tokens: every backend against a plain rendering of docs/numerics.md, and against sense."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from spola.core.params import SamplingParams
from support.drive import Driver, Job, greedy
from support.sampling import PROMPT, V, logits_after, sampled


def first(driver: Driver, params: SamplingParams, seed: int = 0, **job) -> int:
    out = driver.alone(Job(PROMPT, 1, params, seed=seed, **job))
    assert out.error is None
    return out.ids[0]


# --- the order of operations, against a rendering of it in plain Python ------------------------------


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [right // 2**32 ^ c[1] ^ k[0], right % 2**32, left // 2**32 ^ c[3] ^ k[1], left % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def by_the_page(raw: np.ndarray, p: SamplingParams, prompt, output, seed: int, choice: int) -> int:
    f = np.float32
    logits = [f(x) for x in raw]
    for i, bias in (p.logit_bias or {}).items():
        logits[i] += f(bias)
    counts = Counter(output)
    for i in {*prompt, *output}:
        r = f(p.repetition_penalty)
        logits[i] = logits[i] / r if logits[i] > 0 else logits[i] * r
    for i, n in counts.items():
        logits[i] -= f(p.frequency_penalty) * f(n) + f(p.presence_penalty)
    if p.greedy:
        return min(range(V), key=lambda i: (-logits[i], i))
    logits = [x / f(p.temperature) for x in logits]
    order = sorted(range(V), key=lambda i: (-logits[i], i))
    if p.top_k > 0:
        order = order[: p.top_k]
    weight = {i: math.exp(float(logits[i]) - float(logits[order[0]])) for i in order}
    if p.top_p < 1:
        goal, total, keep = p.top_p * sum(weight.values()), 0.0, []
        for i in order:
            keep.append(i)
            total += weight[i]
            if total >= goal:
                break
        order = keep
    left = sorted(i for i in order if weight[i] >= p.min_p)
    words = philox([len(prompt) + len(output), choice, 0, 0], [seed % 2**32, seed // 2**32])
    u = ((words[0] * 2**32 + words[1]) // 2**11) / 2**53
    goal, running = u * sum(weight[i] for i in left), 0.0
    for i in left:
        running += weight[i]
        if running > goal:
            return i
    raise AssertionError("nothing drawn")


def test_tokens_are_those_of_the_page(driver: Driver) -> None:
    rng = np.random.default_rng(8)
    jobs = []
    for i in range(40):
        fields = {
            "temperature": float(rng.choice([0.0, 0.3, 1.0, 2.5])),
            "top_k": int(rng.choice([0, -1, 1, 5, 40, V, 10**9])),
            "top_p": float(rng.choice([1.0, 0.3, 0.9])),
            "min_p": float(rng.choice([0.0, 0.05, 0.4])),
            "repetition_penalty": float(rng.choice([1.0, 1.3, 0.8])),
            "presence_penalty": float(rng.choice([0.0, 0.6, -0.5])),
            "frequency_penalty": float(rng.choice([0.0, 0.9])),
            "logit_bias": {5: 3.0, 9: -100.0, 200: 2.5} if i % 3 == 0 else None,
        }
        seed = int(rng.integers(0, 2**64, dtype=np.uint64))
        jobs.append(Job(PROMPT, 5, SamplingParams(**fields), seed=seed, choice=i % 4))
    outcomes = driver.run(jobs)
    known = [Job([*PROMPT, *out.ids], want="logits") for out in outcomes]
    for job, out, raw in zip(jobs, outcomes, driver.run(known), strict=True):
        for n, token in enumerate(out.ids):
            row = raw.logits[len(PROMPT) - 1 + n]
            assert token == by_the_page(row, job.params, PROMPT, out.ids[:n], job.seed, job.choice)


def test_frequencies_follow_the_distribution(driver: Driver) -> None:
    """1,000 seeds for one token: chi-squared over the likeliest ids, far below one in a million."""
    raw = logits_after(driver, PROMPT[:3]).astype(np.float64)
    p = np.exp(raw - raw.max())
    p /= p.sum()
    n = 1000
    seen: Counter[int] = Counter()
    for start in range(0, n, 50):
        jobs = [Job(PROMPT[:3], 1, sampled(), seed=seed) for seed in range(start, start + 50)]
        seen.update(out.ids[0] for out in driver.run(jobs))
    likely = [i for i in range(V) if n * p[i] >= 8]
    expected = [*(n * p[i] for i in likely), n * (1 - p[likely].sum())]
    counted = [*(seen[i] for i in likely), n - sum(seen[i] for i in likely)]
    chi = sum((c - e) ** 2 / e for c, e in zip(counted, expected, strict=True))
    assert len(likely) >= 5
    assert chi < len(likely) + 5 * math.sqrt(2 * len(likely)) + 10


# --- seeds -------------------------------------------------------------------------------------------


def test_seeds(driver: Driver) -> None:
    def text(seed: int, choice: int = 0, temperature: float = 1.0) -> tuple[int, ...]:
        params = sampled(temperature=temperature)
        return tuple(driver.alone(Job(PROMPT, 12, params, seed=seed, choice=choice)).ids)

    assert text(7) == text(7) == text(7)
    assert len({text(seed) for seed in (0, 1, 2, 7, 2**63, 2**64 - 1, 7 + 2**32)}) == 7
    assert len({text(7, choice) for choice in range(4)}) == 4
    assert len({text(seed, temperature=0.0) for seed in range(5)}) == 1


# --- extremes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1e-45},
        {"temperature": 1e-4},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"top_k": 1},
        {"temperature": 1e6, "top_k": 1},
        {"temperature": 1e-4, "top_p": 1e-9, "min_p": 1.0, "top_k": 1},
    ],
)
def test_what_leaves_one_token_is_greedy(driver: Driver, fields) -> None:
    best = driver.alone(Job(PROMPT, 6, greedy())).ids
    for seed in (1, 2):
        assert driver.alone(Job(PROMPT, 6, sampled(**fields), seed=seed)).ids == best


def test_what_is_off_changes_nothing(driver: Driver) -> None:
    plain = driver.alone(Job(PROMPT, 6, sampled(), seed=3)).ids
    for fields in ({"top_k": -1}, {"top_k": 10**9}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert driver.alone(Job(PROMPT, 6, sampled(**fields), seed=3)).ids == plain


def test_a_very_high_temperature_is_uniform(driver: Driver) -> None:
    jobs = [Job(PROMPT, 4, sampled(temperature=1e6), seed=seed) for seed in range(50)]
    ids = [i for out in driver.run(jobs) for i in out.ids]
    assert len(ids) == 200
    assert len(set(ids)) > 100
    assert all(0 <= i < V for i in ids)


# --- penalties, bias, masks --------------------------------------------------------------------------


def test_frequency_and_presence_ignore_the_prompt(driver: Driver) -> None:
    best = first(driver, greedy())
    prompt = [*PROMPT, best, best, best]
    plain = driver.alone(Job(prompt, 1, greedy(logprobs=5)))
    for fields in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        out = driver.alone(Job(prompt, 1, greedy(logprobs=5, **fields)))
        assert out.ids == plain.ids
        assert out.logprobs == plain.logprobs


def test_frequency_counts_and_presence_does_not(driver: Driver) -> None:
    """A token pushed up by a bias is held down by as many occurrences as its lead is worth."""
    raw = logits_after(driver, PROMPT)
    push = float(raw.max() - raw[50]) + 60.0
    repeated = greedy(logit_bias={50: push})
    assert driver.alone(Job(PROMPT, 40, repeated)).ids.count(50) == 40
    often = driver.alone(Job(PROMPT, 40, greedy(logit_bias={50: push}, frequency_penalty=2.0))).ids
    once = driver.alone(Job(PROMPT, 40, greedy(logit_bias={50: push}, presence_penalty=2.0))).ids
    assert 20 <= often.count(50) < 40
    assert often[:20] == [50] * 20
    assert once == [50] * 40


def test_repetition_counts_the_prompt(driver: Driver) -> None:
    best = first(driver, greedy())
    raw = logits_after(driver, [*PROMPT, best])
    prompt = [*PROMPT, best]
    plain = first_of(driver, prompt, greedy())
    strong = first_of(driver, [*prompt[:-1], plain, best], greedy(repetition_penalty=100.0))
    assert raw.max() > 0
    assert strong not in (plain, best)


def first_of(driver: Driver, prompt: list[int], params: SamplingParams) -> int:
    return driver.alone(Job(prompt, 1, params)).ids[0]


def test_bias_forces_and_forbids(driver: Driver) -> None:
    best = first(driver, greedy())
    assert first(driver, greedy(logit_bias={best: -100.0})) != best
    other = (best + 1) % V
    assert driver.alone(Job(PROMPT, 5, sampled(logit_bias={other: 100.0}), seed=5)).ids == [other] * 5


def bits(ids: set[int]) -> bytes:
    words = np.zeros(-(-V // 32), np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << i % 32)
    return words.tobytes()


def test_a_mask_is_obeyed(driver: Driver) -> None:
    for allowed in ({0, 31, 32, V - 1}, {7}):
        for params in (greedy(), sampled(temperature=5.0), sampled(top_p=0.5), sampled(top_k=3)):
            for seed in range(3):
                out = driver.alone(Job(PROMPT, 6, params, seed=seed, mask=bits(allowed)))
                assert set(out.ids) <= allowed
    raw = logits_after(driver, PROMPT)
    assert first(driver, greedy(), mask=bits({3, 9})) == max((3, 9), key=lambda i: raw[i])


# --- bans: allowed ids, bad sequences, early ends ----------------------------------------------------


def test_only_allowed_ids_are_drawn(driver: Driver) -> None:
    for allowed in ((0, 31, 32, V - 1), (7,)):
        for fields in ({"temperature": 0.0}, {"temperature": 5.0}, {"top_p": 0.5}, {"top_k": 3}):
            params = sampled(allowed_token_ids=allowed, **fields)
            out = driver.alone(Job(PROMPT, 6, params, seed=4))
            assert set(out.ids) <= set(allowed)
    both = driver.alone(Job(PROMPT, 6, sampled(allowed_token_ids=(3, 9)), mask=bits({9, 40})))
    assert both.ids == [9] * 6
    raw = logits_after(driver, PROMPT)
    best = max((3, 9), key=lambda i: raw[i])
    assert first(driver, greedy(allowed_token_ids=(9, 3), logit_bias={int(raw.argmax()): 100.0})) == best


def test_an_end_is_not_drawn_before_min_tokens(driver: Driver) -> None:
    plain = driver.alone(Job(PROMPT, 8, greedy())).ids
    ends = (plain[0], plain[3])
    for least in (1, 3, 6):
        out = driver.alone(Job(PROMPT, 8, greedy(min_tokens=least), ends=ends)).ids
        assert not set(out[:least]) & set(ends)
    assert driver.alone(Job(PROMPT, 8, greedy(), ends=ends)).ids == plain
    pushed = greedy(min_tokens=5, logit_bias={plain[0]: 100.0})
    assert driver.alone(Job(PROMPT, 8, pushed, ends=ends)).ids[5:] == [plain[0]] * 3
    assert plain[0] not in driver.alone(Job(PROMPT, 8, pushed, ends=ends)).ids[:5]


def test_a_bad_sequence_is_never_completed(driver: Driver) -> None:
    push = {5: 90.0, 6: 90.0, 7: 90.0}

    def text(*bad: tuple[int, ...], drafts=()) -> list[int]:
        params = sampled(logit_bias=push, temperature=8.0)
        return driver.alone(Job(PROMPT, 40, params, seed=3, bad=bad, drafts=drafts)).ids

    plain = text()
    pairs = set(pairwise(plain))
    assert {(5, 6), (6, 7), (7, 5)} <= pairs
    assert 6 not in text((6,))
    got = text((5, 6), (6, 7, 5))
    assert (5, 6) not in pairwise(got)
    assert (6, 7, 5) not in zip(got, got[1:], got[2:], strict=False)
    assert {5, 6, 7} <= set(got)
    # What is drafted does not count until it is accepted.
    assert text((5, 6), (6, 7, 5), drafts=plain) == got
    assert text((5, 6), (6, 7, 5), drafts=got) == got
    # The prompt does not count.
    params = greedy(logit_bias={6: 100.0})
    assert driver.alone(Job([*PROMPT, 5], 1, params, bad=((5, 6),))).ids == [6]


def test_bans_that_leave_nothing_end_the_request(driver: Driver) -> None:
    out = driver.alone(Job(PROMPT, 3, greedy(allowed_token_ids=(4,)), bad=((4,),)))
    assert out.error is not None
    assert "no token" in out.error


# --- errors touch one request ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job([*PROMPT[:4], V], 3), rf"token id {V} is outside"),
        (Job([999999], 3), "token id 999999 is outside"),
        (Job([-1, 3], 3), "token id -1 is outside"),
        (Job(PROMPT[:4], 3, greedy(logit_bias={V: 1.0})), f"{V}"),
        (Job(PROMPT[:4], 3, greedy(allowed_token_ids=(V,))), f"allowed_token_ids: token id {V}"),
        (Job(PROMPT[:4], 3, bad=((3, V),)), f"bad_words: token id {V}"),
        (Job(PROMPT[:4], 3, greedy(min_tokens=1), ends=(V,)), f"ends: token id {V}"),
        (Job(PROMPT[:4], 3, mask=bytes(4 * -(-V // 32))), "mask allows no token"),
        (Job([3, V], want="score"), f"token id {V}"),
    ],
)
def test_a_bad_request_ends_alone(driver: Driver, job: Job, message: str) -> None:
    good = [Job(PROMPT[i:], 4, sampled(), seed=i) for i in range(2)]
    want = driver.run(good)
    got = driver.run([good[0], job, good[1]])
    assert got[1].error is not None
    assert message in got[1].error
    assert "\n" not in got[1].error
    assert got[1].ids == []
    for one, other in zip((got[0], got[2]), want, strict=True):
        assert one.error is None
        assert one.ids == other.ids
    assert driver.run(good)[0].ids == want[0].ids
