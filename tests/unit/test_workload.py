"""Mixes and arrivals: seeds, rates, lengths, files."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.workload import Item, arrivals, materialize, mix
from spola.workload.text import WORDS


def test_arrivals_offer_exactly_the_rate_and_repeat_by_seed() -> None:
    times = arrivals(500, 4.0, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(499 / 4)
    assert times == arrivals(500, 4.0, seed=1)
    assert times != arrivals(500, 4.0, seed=2)


@pytest.mark.parametrize(
    ("burstiness", "low", "high"), [(1.0, 0.8, 1.2), (0.25, 1.6, 2.4), (100.0, 0.05, 0.15)]
)
def test_the_spread_of_distances_is_that_of_the_gamma_distribution(
    burstiness: float, low: float, high: float
) -> None:
    """The coefficient of variation of Gamma(b) is 1 / sqrt(b)."""
    times = arrivals(2000, 1.0, seed=3, burstiness=burstiness)
    gaps = [b - a for a, b in pairwise(times)]
    assert low < statistics.stdev(gaps) / statistics.fmean(gaps) < high


def test_all_at_once_and_refusals() -> None:
    assert arrivals(3, math.inf) == [0.0, 0.0, 0.0]
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="rate"):
            arrivals(3, bad)
    with pytest.raises(ConfigError, match="burstiness"):
        arrivals(3, 1.0, burstiness=0.0)


def test_random_lengths_stay_within_the_spread() -> None:
    items = mix("random", 300, prompt=100, output=10, spread=0.2).items
    assert {item.prompt for item in items} == set(range(80, 121))
    assert {item.output for item in items} == {8, 9, 10, 11, 12}
    assert set(mix("random", 3, prompt=7, output=5).items) == {Item(7, 5)}
    assert mix("random", 9, spread=0.5, seed=1) == mix("random", 9, spread=0.5, seed=1)
    assert mix("random", 9, spread=0.5, seed=1) != mix("random", 9, spread=0.5, seed=2)


def test_chats_have_the_median_and_the_bounds_that_are_documented() -> None:
    items = mix("sharegpt-like", 3000).items
    assert 60 < statistics.median(item.prompt for item in items) < 110
    assert 120 < statistics.median(item.output for item in items) < 200
    assert statistics.fmean(item.prompt for item in items) > 1.3 * statistics.median(i.prompt for i in items)
    assert all(4 <= i.prompt <= 1024 and i.output >= 4 and i.prompt + i.output <= 2048 for i in items)


def test_items_of_a_group_share_their_prefix_and_nothing_else() -> None:
    items = mix("prefix", 12, prompt=5, output=3, shared=20, groups=3).items
    assert {item.group for item in items} == {0, 1, 2}
    texts = [str(materialize(item, i)).split() for i, item in enumerate(items)]
    assert all(len(text) == 25 for text in texts)
    prefixes = {item.group: text[:20] for item, text in zip(items, texts)}
    assert all(text[:20] == prefixes[item.group] for item, text in zip(items, texts))
    assert len({tuple(prefix) for prefix in prefixes.values()}) == 3
    assert len({tuple(text) for text in texts}) == 12


def test_prompts_differ_by_nonce_and_can_be_ids() -> None:
    item = Item(30, 1)
    assert materialize(item, 0) == materialize(item, 0)
    assert materialize(item, 0) != materialize(item, 0, nonce="a")
    ids = materialize(item, 0, vocab=50)
    assert len(ids) == 30
    assert all(isinstance(token, int) and 0 <= token < 50 for token in ids)
    assert set(str(materialize(item, 0)).split()) <= set(WORDS)


def test_files(tmp_path: Path) -> None:
    lines = tmp_path / "asks.jsonl"
    rows = [{"prompt": "x" * 40, "output_tokens": 7}, {"messages": [{"role": "user", "content": "hello"}]}]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    made = mix(str(lines), 3, output=9)
    assert [item.output for item in made.items] == [7, 9, 7]
    assert materialize(made.items[0], 0, nonce="n") == "x" * 40
    assert materialize(made.items[1], 1) == rows[1]["messages"]
    chats = tmp_path / "chats.json"
    talk = {"conversations": [{"from": "human", "value": "y" * 8}, {"from": "gpt", "value": "z" * 400}]}
    chats.write_text(json.dumps([talk]))
    assert mix(str(chats), 1).items == (Item(2, 100, text="y" * 8),)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no request"),
        ('{"prompt": 1}', "line 1: needs either"),
        ('{"prompt": "a"}\n{', "line 2 is not valid JSON"),
        ('{"prompt": "a", "max_tokens": 0}', "output_tokens"),
        ('[{"conversations": []}]', "entry 0"),
        ("[3]", "entry 0"),
        ("7", "line 1: must be a JSON object"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        mix(str(path), 1)


def test_an_unknown_dataset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="random, sharegpt-like, prefix"):
        mix("shargpt", 1)
