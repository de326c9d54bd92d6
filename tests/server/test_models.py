"""Several models in one server: names, room for one more, turns."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spola.core.errors import CapacityError
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.fair_lock import FairLock
from spola.runtime.machine import probe
from spola.runtime.sharing import plan_of_all, share_memory
from spola.server.shelf import Book, Shelf
from support.running import Running
from support.service import Parrot, tiny_file
from support.serving import ask, serving
from support.waiting import until

PROMPT = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}


def shelf(folder: Path, total: int | None) -> Shelf:
    """Three models of 10 bytes each."""
    path, turns = str(tiny_file(folder)), FairLock()

    def build():
        options = Options(backend="null", max_model_len=256)
        return build_service(path, options, runner=Parrot(0.005), turn=turns)

    return Shelf([Book((name,), build, 10) for name in ("one", "two", "three")], total)


def loaded(running: Running) -> list[str]:
    return [model["id"] for model in ask(running, "/v1/models").body["data"] if model["loaded"]]


def test_a_model_is_loaded_when_it_is_asked_for_and_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path, names=shelf(tmp_path, 25)) as running:
        assert loaded(running) == ["one"]
        answer = ask(running, "/v1/completions", {**PROMPT, "model": "two"})
        assert (answer.status, answer.body["model"]) == (200, "two")
        assert float(answer.headers["x-spola-model-load"]) >= 0
        assert loaded(running) == ["one", "two"]
        assert "x-spola-model-load" not in ask(running, "/v1/completions", {**PROMPT, "model": "two"}).headers
        # The third fits only without the one that was used longest ago.
        assert ask(running, "/v1/completions", {**PROMPT, "model": "three"}).status == 200
        assert loaded(running) == ["two", "three"]
        assert ask(running, "/health").status == 200
        # And back again: the default one too.
        assert ask(running, "/v1/completions", PROMPT).body["model"] == "one"
        assert loaded(running) == ["one", "three"]
        page = ask(running, "/metrics").data.decode()
        assert 'spola:model_loads{model_name="one"} 2.0' in page
        assert 'spola:model_loaded{model_name="two"} 0.0' in page
        answer = ask(running, "/v1/completions", {**PROMPT, "model": "four"})
        assert (answer.status, "'one', 'two', 'three'" in answer.body["error"]["message"]) == (404, True)


def test_a_model_that_works_is_not_taken_away(tmp_path: Path) -> None:
    with serving(tmp_path, names=shelf(tmp_path, 15)) as running:
        answers = []
        body = {"prompt": "a", "max_tokens": 150, "ignore_eos": True, "model": "two"}
        thread = threading.Thread(target=lambda: answers.append(ask(running, "/v1/completions", body)))
        thread.start()
        until(lambda: running.state.busy)
        refused = ask(running, "/v1/completions", {**PROMPT, "model": "three"})
        assert (refused.status, "while other models work" in refused.body["error"]["message"]) == (503, True)
        assert "retry-after" in refused.headers
        thread.join()
        assert answers[0].status == 200
        assert ask(running, "/v1/completions", {**PROMPT, "model": "three"}).status == 200
        assert loaded(running) == ["three"]


def test_two_models_at_once_answer_both(tmp_path: Path) -> None:
    with serving(tmp_path, names=shelf(tmp_path, None)) as running:
        answers = []
        threads = [
            threading.Thread(
                target=lambda name: answers.append(
                    ask(running, "/v1/completions", {**PROMPT, "model": name})
                ),
                args=(name,),
            )
            for name in ("one", "two", "three") * 3
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.status for answer in answers] == [200] * 9
        assert sorted(answer.body["model"] for answer in answers) == ["one"] * 3 + ["three"] * 3 + ["two"] * 3


def test_borrowed_routes_name_models_too(tmp_path: Path) -> None:
    with serving(tmp_path, names=shelf(tmp_path, 15)) as running:
        rows = ask(running, "/api/tags").body["models"]
        assert [(row["name"], bool(row["digest"])) for row in rows] == [
            ("one", True),
            ("two", False),
            ("three", False),
        ]
        short = {"inputs": "a", "parameters": {"max_new_tokens": 2}}
        assert ask(running, "/generate", {**short, "model": "two"}).status == 200
        assert loaded(running) == ["two"]
        said = ask(running, "/completion", {"prompt": "a", "n_predict": 2, "model": "three"}).body
        assert (said["model"], loaded(running)) == ("three", ["three"])
        assert ask(running, "/api/show", {"model": "two:latest"}).body["modelfile"] == "FROM two\n"
        assert [row["name"] for row in ask(running, "/api/ps").body["models"]] == ["two"]
        assert ask(running, "/info?model=three").body["model_id"] == "three"
        assert ask(running, "/generate", short).status == 200  # the default one
        assert loaded(running) == ["one"]


def test_turns_are_taken_in_the_order_of_asking() -> None:
    turns, order, inside = FairLock(), [], []

    def take(number: int) -> None:
        with turns:
            inside.append(number)
            assert len(inside) == 1
            order.append(number)
            inside.pop()

    threads = []
    with turns:
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            until(lambda: len(turns._gates) > number)  # noqa: B023
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_memory_is_planned_for_all_or_for_each(tmp_path: Path) -> None:
    path, machine = str(tiny_file(tmp_path)), probe()
    options = Options(backend="null")
    much = replace(machine, memory_limit=10 << 30, memory_available=10 << 30)
    shares, total = share_memory([path, path], options, much)
    assert sum(share.bytes for share in shares) <= total
    assert shares[0].options.kv_memory == shares[1].options.kv_memory
    # Room for the weights and work space of one, not of both.
    little = replace(machine, memory_limit=100 << 20, memory_available=100 << 20)
    shares, total = share_memory([path, path], options, little)
    assert max(share.bytes for share in shares) <= total < sum(share.bytes for share in shares)
    assert "more than there is" in plan_of_all(["a", "b"], shares, total)
    line = plan_of_all(["a", "b"], *share_memory([path, path], options, much))
    assert line.startswith("plan of all 2 models: ")
    assert line.endswith("all are held at once")
    assert line.count("KV cache") == 2
    with pytest.raises(CapacityError, match="Three ways out: --kv-memory"):
        share_memory([path], replace(options, kv_memory=1 << 40), much)
    with pytest.raises(CapacityError, match="weights need"):
        share_memory([path], options, replace(machine, memory_limit=1 << 20, memory_available=1 << 20))
