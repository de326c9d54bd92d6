"""What the native backend refuses: damaged tensors, parts it lacks, steps that break the contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.native import NativeRunner
from spola.backends.shapes import StepError
from spola.core.errors import CapacityError, ConfigError, ModelError
from spola.core.params import SamplingParams
from spola.core.runner import Tensor
from spola.core.step import BlockCopy, RequestState, Slice, Step, pack_ids
from spola.spec.decoder import Alibi, LearnedPositions, MoeMlp, Router
from support.drive import Driver, Job, greedy
from support.tiny import Tiny, TinyModel

TINY = Tiny(seed=31)
IDS = list(range(3, 43))


def load(
    model: TinyModel | None = None, tensors: list[Tensor] | None = None, spec=None, **config
) -> NativeRunner:
    model = model or TinyModel(TINY)
    runner = NativeRunner()
    runner.load(spec or model.spec, model.tensors if tensors is None else tensors, model.config(**config))
    return runner


# --- tensors -----------------------------------------------------------------------------------------


def changed(model: TinyModel, name: str, data: bytes | None = None, **fields) -> list[Tensor]:
    out = list(model.tensors)
    (at,) = (i for i, t in enumerate(out) if t.name == name)
    out[at] = msgspec.structs.replace(out[at], **({"data": data} if data is not None else {}) | fields)
    return out


def test_a_scale_that_is_not_finite_is_named() -> None:
    model = TinyModel(TINY)
    name = "layers.1.mlp.down.weight"
    for value in (np.nan, np.inf):
        data = bytearray(next(t.data for t in model if t.name == name))
        data[20:22] = np.float16(value).tobytes()  # d of the second block
        with pytest.raises(ModelError, match=rf"{name}: holds a value or scale that is not finite"):
            load(model, changed(model, name, bytes(data)))


def test_a_norm_that_is_not_finite_is_named() -> None:
    model = TinyModel(TINY)
    data = np.ones(TINY.hidden, np.float32)
    data[-1] = np.nan
    with pytest.raises(ModelError, match=r"final_norm.weight: holds a value that is not finite"):
        load(model, changed(model, "final_norm.weight", data.tobytes()))


def test_tensors_that_do_not_fit_are_named() -> None:
    model = TinyModel(TINY)
    name = "layers.0.attention.k.weight"
    whole = next(t for t in model if t.name == name)
    with pytest.raises(ModelError, match=rf"{name}: has {len(whole.data) - 4} bytes, its shape needs"):
        load(model, changed(model, name, bytes(whole.data)[:-4]))
    with pytest.raises(ModelError, match=rf"{name} has shape"):
        load(model, changed(model, name, shape=whole.shape[::-1]))
    with pytest.raises(ModelError, match=r"blk.0.attn_k.weight is missing"):
        load(model, [t for t in model.tensors if t.name != name])
    norm = next(t for t in model if t.name == "layers.0.pre_mlp_norm.weight")
    with pytest.raises(ModelError, match=r"pre_mlp_norm.weight: must be F32, F16 or BF16"):
        load(model, changed(model, norm.name, bytes(TINY.hidden // 32 * 34), dtype="Q8_0"))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_loading_takes_little_more_than_the_weights() -> None:
    """The second copy of a tensor is the packed one; no third exists."""
    tiny = Tiny(hidden=512, ff=2048, layers=6, heads=8, kv_heads=8, head_dim=64, vocab=4096, dtype="F16")
    model = TinyModel(tiny)
    held = sum(len(t.data) for t in model.tensors)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is in use
    before = peak_bytes()
    runner = load(model, max_step_tokens=64)
    grown = peak_bytes() - before
    assert held > 50e6
    assert held <= runner.memory()["weights"] <= 1.01 * held + tiny.context * 64 * 8
    assert 0.9 * held < grown < 1.1 * held


def peak_bytes() -> int:
    """Peak of this process's resident memory."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# --- parts -------------------------------------------------------------------------------------------


def test_parts_that_are_not_lowered_are_named() -> None:
    model = TinyModel(TINY)
    first, second = model.spec.layers
    mlp = first.mlp
    for fields, message in (
        ({"attention": replace(second.attention, positions=Alibi())}, "Alibi"),
        ({"mlp": replace(mlp, gated=False, clamp=7.0)}, "a clamped activation without a gate"),
        (
            {"mlp": MoeMlp(4, 2, mlp, Router("softmax", True)), "residual": "parallel"},
            "experts beside attention",
        ),
    ):
        with pytest.raises(ModelError, match=f"layer 1: the native backend does not have {message} yet"):
            load(model, spec=replace(model.spec, layers=(first, replace(second, **fields))))


def test_a_position_table_must_reach_as_far_as_the_context() -> None:
    model = TinyModel(TINY)
    tables = [Tensor("positions.weight", "F32", (66, TINY.hidden), bytes(66 * TINY.hidden * 4))]
    spec = replace(model.spec, positions=LearnedPositions(64, offset=2))
    load(model, [*model.tensors, *tables], spec, max_model_len=64).close()
    with pytest.raises(ModelError, match="too small for max_model_len 65"):
        load(model, [*model.tensors, *tables], spec, max_model_len=65)


def test_configurations_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="threads"):
        load(threads=0)
    with pytest.raises(ConfigError, match="max_step_tokens"):
        load(max_step_tokens=0)
    with pytest.raises(CapacityError, match="KV blocks"):
        load(blocks=2**31 - 1, kv="f32", max_model_len=64)


# --- steps -------------------------------------------------------------------------------------------


def state(id: int, **fields) -> RequestState:
    values = {
        "id": id,
        "choice": 0,
        "seed": 0,
        "ids": pack_ids(IDS),
        "n_prompt": len(IDS),
        "params": greedy(),
    }
    return RequestState(**values | fields)


def piece(id: int = 1, start: int = 0, ids=IDS, table=(0, 1), n_head: int = 1, **fields) -> Slice:
    return Slice(id, start, pack_ids(ids), (pack_ids(table),), n_head, **fields)


BAD_STEPS = [
    (Step(0, (piece(),)), "the request is not known"),
    (Step(0, (piece(), piece(2, table=(2, 3))), new=(state(1), state(2)), gone=(2, 3)), None),
    (Step(0, (piece(), piece()), new=(state(1),)), "two slices"),
    (Step(0, (piece(ids=[]),), new=(state(1),)), "no tokens"),
    (Step(0, (piece(start=-1),), new=(state(1),)), "positions -1"),
    (Step(0, (piece(start=100, table=range(5)),), new=(state(1),)), "do not fit max_model_len 128"),
    (Step(0, (piece(start=2**31 - 8, table=range(5)),), new=(state(1),)), "do not fit max_model_len 128"),
    (Step(0, (piece(table=(0,)),), new=(state(1),)), "block table is too short"),
    (Step(0, (piece(table=(0, 8)),), new=(state(1),)), "block 8 is outside the pool of 8"),
    (Step(0, (piece(table=(-1, 0)),), new=(state(1),)), "block -1 is outside"),
    (
        Step(0, (msgspec.structs.replace(piece(), tables=()),), new=(state(1),)),
        "one block table per KV group",
    ),
    (Step(0, (piece(n_head=41),), new=(state(1),)), "n_head"),
    (Step(0, (piece(n_head=-1),), new=(state(1),)), "n_head"),
    (Step(0, (piece(n_head=2),), new=(state(1),)), "n_head must be 0 or"),
    (Step(0, (piece(n_head=1, n_drafts=2),), new=(state(1),)), "n_drafts"),
    (Step(0, (piece(n_drafts=-1),), new=(state(1),)), "n_drafts"),
    (Step(0, (piece(masks=b"1234"),), new=(state(1),)), "masks"),
    (Step(0, (piece(targets=pack_ids([1, 2])),), new=(state(1, want="score"),)), "target"),
    (Step(0, (piece(),), new=(state(1),), copies=(BlockCopy(0, 0, 8),)), "block 8"),
    (Step(0, (piece(),), new=(state(1),), copies=(BlockCopy(1, 0, 1),)), "KV group 1"),
    (Step(0, (piece(),), new=(state(1),), zero=((0, -1),)), "block -1"),
    (Step(0, (piece(),), new=(state(1, n_prompt=41),)), "n_prompt"),
    (Step(0, (msgspec.structs.replace(piece(), ids=b"12345"),), new=(state(1),)), "Slice.ids"),
    (
        Step(0, tuple(piece(i, table=(0, 1)) for i in range(2)), new=(state(0), state(1))),
        "max_step_tokens is 64",
    ),
    (
        Step(0, tuple(piece(i, 0, [3], (i,)) for i in range(5)), new=tuple(map(state, range(5)))),
        "max_seqs is 4",
    ),
]


@pytest.mark.parametrize(("step", "message"), BAD_STEPS)
def test_a_step_that_breaks_the_contract_changes_nothing(step: Step, message: str | None) -> None:
    runner = load(blocks=8, max_model_len=128, max_step_tokens=64 if message else 80, max_seqs=4)
    if message is None:  # the frame of the others is itself right
        assert all(out.error is None for out in runner.execute(step).slices)
        return
    with pytest.raises(StepError, match=message):
        runner.execute(step)
    with pytest.raises(StepError, match="the request is not known"):
        runner.execute(Step(1, (piece(0, 0, [3], (0,)),)))
    good = Step(1, (piece(9),), new=(state(9),))
    assert runner.execute(good).slices[0].ids


def test_a_request_is_known_until_it_is_gone() -> None:
    runner = load()
    first = runner.execute(Step(0, (piece(),), new=(state(1),))).slices[0]
    again = Step(1, (piece(1, 40, [first.ids[0]]),))
    assert runner.execute(again).slices[0].error is None
    with pytest.raises(StepError, match="not known"):
        runner.execute(Step(2, again.slices, gone=(1,)))
    runner.execute(Step(3, (), gone=(1,)))
    with pytest.raises(StepError, match="not known"):
        runner.execute(again)


def test_an_adapter_is_refused_by_name() -> None:
    out = load().execute(Step(0, (piece(),), new=(state(1, adapter="tone"),))).slices[0]
    assert out.error is not None
    assert "adapter 'tone'" in out.error
    assert out.ids == ()


def test_values_that_are_not_finite_end_one_request() -> None:
    """A damaged token embedding: finite itself, but it overflows inside the model."""
    model = TinyModel(Tiny(seed=32, dtype="F32"))
    table = next(t for t in model if t.name == "embedding.weight")
    values = np.frombuffer(table.data, np.float32).reshape(table.shape).copy()
    values[200] = 3e38
    runner = NativeRunner()
    config = model.config()
    runner.load(model.spec, changed(model, table.name, values.tobytes()), config)
    driver = Driver(runner, config, 288)
    good = Job(IDS, 4, greedy(logit_bias={200: -100.0}))
    want = driver.alone(good)
    got = driver.run([good, Job([5, 200, 6], 4), good])
    assert got[1].error is not None
    assert "not finite" in got[1].error
    assert got[1].ids == []
    assert [out.error for out in (got[0], got[2], want)] == ["", "", ""] or got[0].ids == got[
        2
    ].ids == want.ids


def test_a_closed_runner_says_so() -> None:
    runner = load()
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.execute(Step(0, ()))


def test_known_ids_outside_of_the_vocabulary_lower_no_logit() -> None:
    """Penalties count what a RequestState lists; an id without a logit must not be written through."""
    model = TinyModel(TINY)
    params = SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=1, frequency_penalty=1)
    answers = []
    for foreign in ([], [-1, -(2**31), TINY.vocab, 10**6, 2**31 - 1]):
        runner = load(model)
        state = RequestState(1, 0, 0, pack_ids([5, 6, *foreign]), 1, params)
        piece = Slice(1, 0, pack_ids([5, 6]), (pack_ids([0]),), n_head=1)
        answers.append(runner.execute(Step(0, (piece,), new=(state,))).slices[0].ids)
        runner.close()
    assert answers[0] == answers[1]
