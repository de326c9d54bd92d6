"""What a request gives does not depend on how it is computed: batch, chunks, blocks, preemption, drafts."""

from __future__ import annotations

import numpy as np
import pytest

from spola.core.step import BlockCopy, RequestState, Slice, Step, decode_step, encode_step, pack_ids
from support.drive import Driver, Job, Outcome, greedy
from support.tiny import Tiny

TINY = Tiny(seed=3, vocab=288)
RNG = np.random.default_rng(1)
PROMPTS = [RNG.integers(0, TINY.vocab, n).tolist() for n in (1, 31, 32, 33, 70, 5, 300, 2)]
JOBS = [
    Job(prompt, 6, greedy(temperature=0.0 if i % 2 else 0.8, repetition_penalty=1.1), seed=i)
    for i, prompt in enumerate(PROMPTS)
]


def same(bench, got: Outcome, want: Outcome) -> None:
    """Equal tokens; equal bits of log-probabilities where the runner promises them, else near ones."""
    assert got.error is want.error is None
    assert got.ids == want.ids
    assert len(got.logprobs) == len(want.logprobs)
    if bench.exact:
        assert got.logprobs == want.logprobs
        assert got.scores == want.scores
        return
    assert [x.logprob for x in got.logprobs] == pytest.approx([x.logprob for x in want.logprobs], abs=2e-3)
    assert got.scores == pytest.approx(want.scores, abs=2e-3)


@pytest.mark.parametrize("kv", ["f16", "f32,int8", "int8,f32"])
def test_alone_or_together_in_any_chunks(bench, kv: str) -> None:
    alone = [bench.load(TINY, kv=kv).alone(job) for job in JOBS]
    driver = bench.load(TINY, kv=kv, seed=1)
    for chunk in (64, 512):
        for got, want in zip(driver.run(JOBS, chunk), alone, strict=True):
            same(bench, got, want)
    for chunk in (1, 7):
        for got, want in zip(driver.run(JOBS[2:6], chunk), alone[2:6], strict=True):
            same(bench, got, want)
    assert max(len(step.slices) for step in driver.steps) == len(JOBS)
    mixed = [{piece.n == 1 for piece in step.slices} for step in driver.steps]
    assert {True, False} in mixed


@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_0"])
def test_other_weights_are_as_invariant(bench, dtype: str) -> None:
    tiny = Tiny(seed=4, dtype=dtype, tied=False, biases=True)
    jobs = JOBS[3:6]
    alone = [bench.load(tiny).alone(job) for job in jobs]
    for got, want in zip(bench.load(tiny, seed=2).run(jobs, 7), alone, strict=True):
        same(bench, got, want)


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_the_order_of_blocks_does_not_matter(bench, kv: str) -> None:
    job = JOBS[6]
    want = bench.load(TINY, blocks=12, seed=5, kv=kv).alone(job)
    for seed in (6, 7):
        same(bench, bench.load(TINY, blocks=40, seed=seed, kv=kv).alone(job), want)


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_a_preempted_request_goes_on_as_it_was(bench, kv: str) -> None:
    job = Job(PROMPTS[4], 10, greedy(temperature=0.7, frequency_penalty=1.0, repetition_penalty=1.2), seed=9)
    want = bench.load(TINY, kv=kv).alone(job)
    for after in (1, 5):
        same(bench, bench.load(TINY, kv=kv).preempted(job, after), want)


def test_scores_and_vectors_in_any_chunks(bench) -> None:
    driver = bench.load(TINY)
    score = Job(PROMPTS[4], want="score")
    want = driver.alone(score)
    assert len(want.scores) == len(PROMPTS[4]) - 1
    for chunk in (1, 7, 64):
        same(bench, driver.alone(score, chunk), want)
    for kind in ("embed_last", "embed_mean"):
        job = Job(PROMPTS[4], want=kind)  # type: ignore[arg-type]
        whole = driver.alone(job).vector
        assert whole is not None
        assert whole.shape == (TINY.hidden,)
        for chunk in (7, 64):
            vector = driver.alone(job, chunk).vector
            np.testing.assert_allclose(vector, whole, rtol=0 if bench.exact else 1e-3, atol=1e-5)
    last = driver.alone(Job(PROMPTS[4], want="embed_last")).vector
    prefix = driver.alone(Job(PROMPTS[4][:-1], want="embed_last")).vector
    assert np.abs(last - prefix).max() > 0.01


def test_wanting_few_rows_or_all_changes_nothing(bench) -> None:
    """Slices of one step want their last row, every row or none (what is not wanted may be left out)."""
    kinds = ("sample", "logits", "embed_last", "score", "embed_mean", "sample", "embed_last")
    jobs = [Job(PROMPTS[4 + i % 3], 4, want=kind) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]
    alone = [bench.load(TINY).alone(job) for job in jobs]
    driver = bench.load(TINY, seed=3)
    tolerance = {"rtol": 0, "atol": 0} if bench.exact else {"rtol": 1e-2, "atol": 2e-3}
    for chunk in (64, 512):
        for got, want in zip(driver.run(jobs, chunk), alone, strict=True):
            same(bench, got, want)
            np.testing.assert_allclose(got.logits, want.logits, **tolerance)
            if want.vector is not None:
                np.testing.assert_allclose(got.vector, want.vector, **tolerance)
    every = driver.alone(Job(PROMPTS[4], want="logits")).logits
    first = driver.alone(Job(PROMPTS[4], 1)).logprobs[0].top[0]
    assert first[0] == int(np.argmax(every[-1]))


def test_scores_are_the_log_softmax_of_the_logits(bench) -> None:
    driver = bench.load(TINY)
    logits = np.array(driver.alone(Job(PROMPTS[4], want="logits")).logits, np.float64)
    lse = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    targets = PROMPTS[4][1:]
    want = logits[np.arange(len(targets)), targets] - lse[:-1]
    assert driver.alone(Job(PROMPTS[4], want="score")).scores == pytest.approx(want.tolist(), abs=2e-5)


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_right_drafts_are_taken_and_wrong_ones_are_not(bench, kv: str) -> None:
    driver = bench.load(TINY, kv=kv)
    if not driver.runner.capabilities.speculation:
        pytest.skip("this runner takes no drafts")
    for params in (greedy(), greedy(temperature=0.9, frequency_penalty=0.7, repetition_penalty=1.3)):
        job = Job(PROMPTS[4], 9, params, seed=4)
        want = driver.alone(job)
        right = driver.alone(Job(PROMPTS[4], 9, params, seed=4, drafts=want.ids))
        same(bench, right, want)
        assert right.accepted == 8
        wrong = [(token + (i % 3 == 1)) % TINY.vocab for i, token in enumerate(want.ids)]
        mixed = driver.alone(Job(PROMPTS[4], 9, params, seed=4, drafts=wrong))
        same(bench, mixed, want)
        assert 0 < mixed.accepted < 8


def test_a_recorded_step_replays_to_the_same(bench) -> None:
    driver = bench.load(TINY)
    driver.run(JOBS[:4], 32)
    again = bench.load(TINY)
    for step, want in zip(driver.steps, driver.outputs, strict=True):
        assert again.runner.execute(decode_step(encode_step(step))).slices == want.slices


@pytest.mark.parametrize("kv", ["f16", "int8", "f32,int8"])
def test_a_copied_block_continues_like_its_source(bench, kv: str) -> None:
    """Two requests share a full block and the copy of a partial one, as a prefix hit does."""
    driver = bench.load(TINY, kv=kv)
    prompt = PROMPTS[4][:50]
    want = driver.alone(Job([*prompt, 7], 1))

    def state(id: int, ids: list[int]) -> RequestState:
        return RequestState(id, 0, 0, pack_ids(ids), len(ids), greedy())

    a, b, c = 3, 9, 4
    for block in (a, b, c):
        driver.runner.poison(0, block)  # type: ignore[attr-defined]
    first = Slice(100, 0, pack_ids(prompt), (pack_ids([a, b]),), 1)
    driver.execute(Step(90, (first,), new=(state(100, prompt),)))
    second = Slice(101, 50, pack_ids([7]), (pack_ids([a, c]),), 1)
    copies = (BlockCopy(0, b, c),)
    # The source is overwritten in the same step, by zeroing it: copies read first.
    step = Step(91, (second,), new=(state(101, [*prompt, 7]),), gone=(100,), copies=copies, zero=((0, b),))
    got = driver.execute(step).slices[0]
    assert got.ids == tuple(want.ids)
    assert got.logprobs is not None
    if bench.exact:
        assert list(got.logprobs) == want.logprobs


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_a_zeroed_block_is_read_as_zeros(bench, kv: str) -> None:
    """A context whose K and V were cleared gives the mean of nothing: not what the tokens gave."""
    driver = bench.load(TINY, kv=kv)
    ids = PROMPTS[1]
    want = driver.alone(Job([*ids, 5], 1))
    state = RequestState(200, 0, 0, pack_ids([*ids, 5]), 32, greedy())
    driver.execute(Step(92, (Slice(200, 0, pack_ids(ids), (pack_ids([2]),), 0),), new=(state,)))
    last = Slice(200, 31, pack_ids([5]), (pack_ids([2]),), 1)
    kept = driver.execute(Step(93, (last,))).slices[0]
    assert kept.ids == tuple(want.ids)
    cleared = driver.execute(Step(94, (last,), zero=((0, 2),))).slices[0]
    assert cleared.error is None
    assert cleared.logprobs is not None
    assert kept.logprobs is not None
    assert abs(cleared.logprobs[0].logprob - kept.logprobs[0].logprob) > 1e-3


def test_static_shapes_give_the_same(bench) -> None:
    """The static configuration refuses other shapes and changes no value."""
    if bench.kind == "native":
        pytest.skip("the native backend takes any shape")
    from spola.backends.reference import ReferenceRunner
    from spola.backends.shapes import StepError
    from support.tiny import TinyModel

    model = TinyModel(TINY)
    mode = "f32" if bench.kind == "reference" else "quantized"
    runner = ReferenceRunner(mode=mode, static_shapes=True)  # type: ignore[arg-type]
    config = model.config()
    runner.load(model.spec, model, config)
    driver = Driver(runner, config, TINY.vocab)
    same(bench, driver.alone(JOBS[4], 64), bench.load(TINY).alone(JOBS[4]))
    with pytest.raises(StepError, match="prefill"):
        driver.run([JOBS[3], JOBS[4]], 64)
    with pytest.raises(StepError, match="32 rows"):
        driver.alone(JOBS[6], 32)


@pytest.mark.parametrize("down", ["Q4_0", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("inner", ["F32", "Q8_0", "Q3_K", "Q4_0"])
def test_matrices_of_an_mlp_in_types_that_group_rows_otherwise(bench, inner: str, down: str) -> None:
    """What gate and up leave for down is of the same rows, however many rows a call of theirs takes."""
    types = {"mlp.gate": inner, "mlp.up": inner, "mlp.down": down}
    tiny = Tiny(
        seed=2, layers=1, hidden=256, heads=2, head_dim=64, kv_heads=1, ff=512, dtype="Q4_0", dtypes=types
    )
    driver = bench.load(tiny)
    job = Job(PROMPTS[6][:100], want="logits")
    want = np.array(driver.alone(job, 4).logits)
    for chunk in (13, 31, 49, 65, 100):
        got = np.array(driver.alone(job, chunk).logits)
        np.testing.assert_allclose(
            got, want, rtol=0 if bench.exact else 1e-2, atol=0 if bench.exact else 2e-3
        )
