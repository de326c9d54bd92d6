"""Batching options from the outside: a batch that waits does not keep the processor busy."""

from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.core.params import SamplingParams
from spola.runtime.config import Options
from spola.runtime.llm import LLM
from support.service import parrot_service


def test_a_batch_that_waits_sleeps_and_then_begins(tmp_path: Path) -> None:
    options = Options(backend="null", max_seqs=4, batching="dynamic", batch_window_s=0.15)
    service, _ = parrot_service(tmp_path, "hello", options=options)
    scheduler = service.loop._engine.scheduler
    asked, plan = [], scheduler.schedule

    def schedule(now: float):
        asked.append(now)
        return plan(now)

    scheduler.schedule = schedule
    with LLM.from_service(service) as llm:
        (output,) = llm.generate("a b", SamplingParams(max_tokens=9))
        assert output.outputs[0].text == "hello"
        idle = len(asked) - scheduler.stats.steps
        assert 1 <= idle <= 5
        # Four fill the batch: nobody waits for the window.
        before = len(asked)
        outputs = llm.generate(["a", "b", "c", "d"], SamplingParams(max_tokens=2))
        assert len(outputs) == 4
        assert asked[-1] - asked[before] < 60
    assert service.config.batch_window_s == 0.15


def test_choices_share_the_prompt_and_usage_counts_it_once(tmp_path: Path) -> None:
    service, _ = parrot_service(tmp_path, "hello")
    with LLM.from_service(service) as llm:
        ids = service.prompt_ids("some words that are many tokens " * 4)
        (output,) = llm.generate([ids], SamplingParams(n=4, max_tokens=3))
        scheduler = service.loop._engine.scheduler
        assert scheduler.stats.prefill_tokens <= len(ids)
        assert output.num_cached_tokens == 0
        assert len(output.outputs) == 4
        (again,) = llm.generate([ids], SamplingParams(max_tokens=1))
        assert again.num_cached_tokens == len(ids) // 32 * 32 > 0
        job = service.submit(ids, SamplingParams(max_tokens=1), _Nobody(), cache_salt="x")
    assert job.cached_tokens == 0


class _Nobody:
    def post(self, mail: list) -> None:
        pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batching": "sometimes"}, "batching: 'sometimes' is none of continuous, dynamic, static"),
        ({"batch_window_s": 0.1}, "batch_window is for dynamic batching only"),
        ({"batching": "dynamic", "batch_window_s": -0.1}, "batch_window must be at least 0 ms, not -100"),
        ({"reservation": "pages"}, "reservation: 'pages' is none of paged, contiguous"),
    ],
)
def test_options_that_contradict_are_refused(fields: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Options(**fields)
