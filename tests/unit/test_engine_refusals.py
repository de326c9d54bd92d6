"""What is refused before it runs: requests that never could, and limits that make no engine."""

import pytest

from spola.core.errors import CapacityError, ConfigError, RequestError
from spola.core.runner import Capabilities
from spola.engine.limits import Limits
from spola.engine.scheduler import Scheduler
from support.engine_rig import FULL, Rig, request, small_static


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"prompt": []}, RequestError, "empty"),
        ({"prompt": [2**31]}, RequestError, "32-bit"),
        ({"prompt": 200}, RequestError, "200 tokens; prompt and output together can have 200"),
        ({"prompt": 150}, CapacityError, r"150 tokens of KV cache \(38 blocks of 4\).* 128 \(32 blocks\)"),
        ({"prompt": [40]}, RequestError, "token 40 is not in the vocabulary of 40"),
        ({"prompt": [-1]}, RequestError, "token -1"),
        ({"prompt": 3, "stop_token_ids": (40,)}, RequestError, "stop_token_ids: token 40"),
        ({"prompt": 1, "want": "score"}, RequestError, "nothing to score from position 0 of 1"),
        ({"prompt": 5, "want": "score", "head_from": 4}, RequestError, "nothing to score"),
        ({"prompt": 5, "want": "logits", "head_from": 5}, RequestError, "nothing to compute"),
    ],
)
def test_what_can_never_run_is_refused_and_harms_nobody(fields, error, text):
    rig = Rig(blocks=32)
    rig.add(request(1, 4, 3, ignore_eos=True))
    with pytest.raises(error, match=text):
        rig.add(request(2, **fields))
    assert rig.finish().keys() == {1}


def test_what_exceeds_the_context_of_the_backend_is_refused():
    rig = Rig(capabilities=small_static(max_total_context=64))
    rig.add(request(1, 64, 1))
    with pytest.raises(CapacityError, match="65 positions; this backend computes at most 64"):
        rig.add(request(2, 65, 1))
    assert len(rig.finish()[1].ids) == 1


def test_an_id_is_used_once():
    rig = Rig()
    r = request(1, 3)
    rig.add(r)
    for twice in (r, request(1, 4)):
        with pytest.raises(ValueError, match="request 1 was added before"):
            rig.add(twice)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_step_tokens": 0}, "max_step_tokens must be at least 1"),
        ({"max_seqs": 0}, "max_seqs must be at least 1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"watermark": 1.0}, "watermark must be from 0 to below 1"),
        ({"max_seqs": 65}, r"max_step_tokens \(64\) must be at least max_seqs \(65\)"),
    ],
)
def test_bad_limits_are_named(fields, text):
    with pytest.raises(ConfigError, match=text):
        Limits(**({"max_step_tokens": 64, "max_seqs": 8, "max_model_len": 100} | fields))


def test_a_chunk_beyond_the_step_is_refused():
    limits = Limits(max_step_tokens=16, max_seqs=4, max_model_len=100)
    caps = Capabilities(device="null", prefill_chunk=32)
    with pytest.raises(ConfigError, match="chunks of exactly 32 tokens, more than max_step_tokens"):
        Scheduler(limits, caps, (FULL,), (8,))
