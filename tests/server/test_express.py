"""The short way of a stream's pieces to the connection: the same bytes, and the long way where it must be."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from spola.core.step import TokenLogprob
from spola.engine.events import Event
from spola.runtime.answer import Delta, Job
from spola.server.asks import Terms, chat_ask, completion_ask
from spola.server.connections import Writer
from spola.server.replies import CompletionShape
from spola.server.sse import Frame, event
from support.running import TEXT, Running
from support.serving import serving

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
SAID = (
    '<think>why "not"?\n</think>the \\cat\x00 歪 😸 '
    '<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call> end'
)
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("model"), max_model_len=1024) as running:
        yield running


@pytest.mark.parametrize(
    "body",
    [
        CHAT,
        {**CHAT, "n": 2, "stream_options": USAGE},
        {**CHAT, "stream_options": {**USAGE, "continuous_usage_stats": True}},
        {**CHAT, "tools": [TOOL]},
        {**CHAT, "logprobs": True, "top_logprobs": 1},
        {**CHAT, "return_token_ids": True},
        {"prompt": "a", "stream": True},
        {"prompt": ["a", [5, 6]], "n": 2, "echo": True, "stream": True, "stream_options": USAGE},
        {"prompt": "a", "echo": True, "max_tokens": 0, "stream": True},
        {"prompt": "a", "logprobs": 1, "stream": True},
    ],
    ids=lambda body: "-".join(name for name in body if name not in ("messages", "stream")) or "chat",
)
@pytest.mark.parametrize("pace", [1, 3])
def test_events_are_the_chunks(running: Running, body: dict[str, Any], pace: int) -> None:
    service, terms = running.service, Terms(model="tiny", adapter=None, strict=False, key="")
    make = chat_ask if "messages" in body else completion_ask
    asks = [make(service, terms, json.dumps(body).encode()) for _ in range(2)]
    for ask in asks:
        ask.shape.identify("same", 0)
    shape, other = (ask.shape for ask in asks)
    n, ask = asks[0].params.n, asks[0]
    jobs = [
        Job(range(n * at, n * at + n), prompt, ask.params, service.tokenizer)
        for at, prompt in enumerate(ask.prompts)
    ]
    ids = service.tokenizer.encode(SAID, add_bos=False)
    pieces = [tuple(ids[at : at + pace]) for at in range(0, len(ids), pace)]
    for ids_now, (at, job) in itertools.product(pieces, enumerate(jobs)):
        for choice in job.choices:
            last = ids_now == pieces[-1]
            delta = job.take(told(choice.id, ids_now, ask.params.logprobs, last))
            delta.index += n * at
            assert other.events(delta, jobs) == b"".join(event(c) for c in shape.chunks(delta, jobs))
    assert jobs[0].choices[0].text == SAID


def told(id: int, ids: tuple[int, ...], logprobs: int | None, last: bool) -> Event:
    entries = (
        None if logprobs is None else tuple(TokenLogprob(token, -1.0, ((token, -1.0),)) for token in ids)
    )
    return Event(id, ids=ids, logprobs=entries, finish_reason="length" if last else None)


def test_a_frame_is_the_event() -> None:
    def make(text: str) -> dict[str, Any]:
        return {"a": '"quoted"', "text": text, "b": [1]}

    for text in ("", "a", '"\\\n\x00\x7f', "歪 😸", "<script>"):
        assert Frame(make)(text) == event(make(text))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_most_pieces_take_the_short_way(running: Running, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Some, or all, may still go the long way: whoever had not come to wait for the next one."""
    written: list[bool] = []
    on_lanes(monkeypatch, lambda text, put: written.append(put(text)) or written[-1])
    running.parrot.delay = 0.02
    body = {"prompt": "a"} if path == "/v1/completions" else CHAT
    chunks = running.chunks(path, {**body, "max_tokens": 200})
    assert text_of(chunks) == TEXT
    assert sum(written) > len(chunks) // 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": CHAT["messages"]}),
        ("/v1/responses", {"input": "hi"}),
        ("/api/chat", {"model": "tiny", "messages": CHAT["messages"], "options": {"num_predict": 200}}),
        ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 200}}),
        ("/completion", {"prompt": "a", "n_predict": 200}),
    ],
)
def test_other_protocols_pieces_take_a_short_way_too(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    written = []
    write = Writer.write
    monkeypatch.setattr(Writer, "write", lambda self, body: (written.append(body), write(self, body))[1])
    running.parrot.delay = 0.02
    most = {"/v1/messages": {"max_tokens": 200}, "/v1/responses": {"max_output_tokens": 200}}.get(path, {})
    data = json.dumps({**body, **most, "stream": True}).encode()
    with urllib.request.urlopen(running.url + path, data=data, timeout=60) as response:
        lines = [line.decode() for line in response if line.strip()]
    assert len(lines) > 20
    assert len(written) > 10
    assert not any("server_error" in line for line in lines)


def test_a_client_that_reads_by_fits_gets_everything_in_order(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = itertools.cycle((True, True, False))
    on_lanes(monkeypatch, lambda text, put: next(turns) and put(text))
    monkeypatch.setattr(Writer, "ready", property(lambda self: next(turns)))
    running.parrot.delay = 0.005
    for _ in range(3):
        chunks = running.chunks("/v1/completions", {"prompt": "a", "max_tokens": 200})
        assert text_of(chunks) == TEXT


def test_a_fault_on_the_short_way_ends_its_stream_only(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = CompletionShape.events

    def broken_lane(text: str, put: Callable[[str], bool]) -> bool:
        if "😸" in text:
            raise ZeroDivisionError
        return put(text)

    def broken(self: CompletionShape, delta: Delta, jobs: Any) -> bytes:
        if "😸" in delta.text:
            raise ZeroDivisionError
        return events(self, delta, jobs)

    monkeypatch.setattr(CompletionShape, "events", broken)
    on_lanes(monkeypatch, broken_lane)
    running.parrot.delay = 0.01
    lines = running.lines("/v1/completions", {"prompt": "a", "max_tokens": 200, "stream": True})
    assert json.loads(lines[-1][6:])["error"]["type"] == "server_error"
    monkeypatch.undo()
    assert text_of(running.chunks("/v1/chat/completions", {**CHAT, "max_tokens": 200})) == TEXT


def on_lanes(monkeypatch: pytest.MonkeyPatch, put: Callable[[str, Callable[[str], bool]], bool]) -> None:
    """Let ``put`` have what lanes are to write, with the lane."""
    lane = Writer.lane
    monkeypatch.setattr(Writer, "lane", lambda self, frame: partial(_swapped, put, lane(self, frame)))


def _swapped(
    put: Callable[[str, Callable[[str], bool]], bool], lane: Callable[[str], bool], text: str
) -> bool:
    return put(text, lane)


def text_of(chunks: list[dict[str, Any]]) -> str:
    choices = [chunk["choices"][0] for chunk in chunks]
    return "".join(choice.get("text", "") or choice.get("delta", {}).get("content", "") for choice in choices)
