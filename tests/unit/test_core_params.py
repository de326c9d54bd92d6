"""SamplingParams: what is refused, and by which name."""

import math

import pytest

from spola.core.errors import RequestError
from spola.core.params import SamplingParams

BAD = [
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("temperature", -1.0),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("temperature", False),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e-320),
    ("temperature", 10**400),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3.0),
    ("max_tokens", 0),
    ("max_tokens", 2**31),
    ("seed", 1.5),
    ("seed", 2**64),
    ("seed", "7"),
    ("logprobs", 21),
    ("logprobs", -1),
    ("stop", ("",)),
    ("stop", ""),
    ("stop", 5),
    ("stop", (5,)),
    ("stop", ("a\udcff",)),
    ("stop", tuple("abcdefghijklmnopq")),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", 5),
    ("logit_bias", {-1: 1.0}),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("min_tokens", 1.0),
    ("bad_words", ("",)),
    ("bad_words", (" ",)),
    ("bad_words", "word"),
    ("bad_words", (5,)),
    ("bad_words", ("x",) * 1025),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (-1,)),
    ("allowed_token_ids", (True,)),
    ("allowed_token_ids", 5),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -1),
    ("logprobs_mode", "cooked"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param.startswith(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bias_out_of_range_names_the_token():
    with pytest.raises(RequestError, match=r"logit_bias\[17\]"):
        SamplingParams(logit_bias={17: 1000.0})


@pytest.mark.parametrize("seed", [-(2**64), -1, 0, 2**63, 2**64 - 1])
def test_odd_seeds_are_taken(seed):
    assert SamplingParams(seed=seed).seed == seed


def test_unknown_names_are_refused():
    with pytest.raises(TypeError):
        SamplingParams(temprature=1.0)


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, True), (1e-5, False), (1.0, False)])
def test_greedy_starts_below_a_hundred_thousandth(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_one_stop_as_a_string_and_none_are_taken_as_vllm_takes_them():
    assert SamplingParams(stop="text").stop == ("text",)
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()
