"""AsyncLLM over the null backend: growing outputs, aborts from every side, errors, several loops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from spola import LLM, AsyncLLM, SamplingParams
from spola.core.errors import RequestError, SpolaError
from spola.core.structured import StructuredOutputsParams
from spola.runtime.config import Options
from spola.text.grammar import Grammars
from support.service import parrot_service, tiny_file
from support.tiny import Tiny

TEXT = "the cat sat on the mat 歪 😸 and then"


def params(**fields) -> SamplingParams:
    return SamplingParams(temperature=0, **({"max_tokens": 200} | fields))


@pytest.fixture
def llm(tmp_path: Path):
    service, parrot = parrot_service(tmp_path, TEXT)
    with AsyncLLM.from_service(service) as llm:
        llm.parrot = parrot
        yield llm
        assert not llm._tickets


async def collect(llm: AsyncLLM, prompt, given: SamplingParams, id: str, **more):
    return [output async for output in llm.generate(prompt, given, id, **more)]


def test_outputs_grow_and_the_last_is_finished(llm: AsyncLLM) -> None:
    outputs = asyncio.run(collect(llm, "hi", params(n=2), "r1"))
    assert [o.request_id for o in outputs] == ["r1"] * len(outputs)
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    texts = [o.outputs[0].text for o in outputs]
    assert all(b.startswith(a) for a, b in pairwise(texts))
    for choice in outputs[-1].outputs:
        assert (choice.text, choice.finish_reason) == (TEXT, "stop")
    assert outputs[-1].prompt == "hi"
    assert outputs[-1].prompt_token_ids == llm.get_tokenizer().encode("hi")


def test_many_at_once_and_one_loop_after_another(llm: AsyncLLM) -> None:
    async def many() -> list:
        return await asyncio.gather(
            *(collect(llm, f"prompt {i}", params(), f"r{i}", priority=i % 3) for i in range(20))
        )

    for _ in range(2):
        for outputs in asyncio.run(many()):
            assert outputs[-1].outputs[0].text == TEXT


def test_prompts_in_vllms_forms_and_conversations(llm: AsyncLLM) -> None:
    ids = llm.get_tokenizer().encode("abc")

    async def main() -> None:
        for prompt in ("abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}):
            (*_, last) = await collect(llm, prompt, params(max_tokens=1), "r")
            assert last.prompt_token_ids == ids
        messages = [{"role": "user", "content": "hi"}]
        (*_, last) = [output async for output in llm.chat(messages, params(), "c")]
        assert last.outputs[0].text == TEXT
        assert last.prompt_token_ids == llm.service.chat_ids(messages)

    asyncio.run(main())


TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["sea"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
CHAT = [{"role": "user", "content": "hi"}]


async def chat(llm: AsyncLLM, id: str, given: SamplingParams | None = None, **more):
    return [output async for output in llm.chat(CHAT, given or params(), id, **more)]


def test_tools_and_forms_of_a_chat_as_llm_has_them(llm: AsyncLLM) -> None:
    async def main() -> None:
        outputs = await chat(llm, "t", tools=[TOOL], tool_choice="required")
        grown = [o.outputs[0].tool_calls[0].arguments for o in outputs if o.outputs[0].tool_calls]
        assert all(b.startswith(a) for a, b in pairwise(grown))
        (call,) = outputs[-1].outputs[0].tool_calls
        assert (call.name, json.loads(call.arguments)) == ("look", {"at": "sea"})
        form = {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}
        last = (await chat(llm, "f", response_format=form))[-1].outputs[0]
        assert (last.text, last.content, last.finish_reason) == ("7", "7", "stop")
        last = (await chat(llm, "plain"))[-1].outputs[0]
        assert (last.content, last.tool_calls) == (TEXT, [])
        both = params(structured_outputs=StructuredOutputsParams(regex="a"))
        for bad, said in (
            ({"tool_choice": "required"}, "needs tools"),
            ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"response_format": form, "given": both}, "not both"),
            ({"chat_template_kwargs": {"nobody_reads": 1}}, "does not read it"),
        ):
            with pytest.raises(RequestError, match=said):
                await chat(llm, "bad", **bad)

    asyncio.run(main())
    with LLM.from_service(llm.service) as same:
        (output,) = same.chat(CHAT, params(), tools=[TOOL], tool_choice="required")
        assert json.loads(output.outputs[0].tool_calls[0].arguments) == {"at": "sea"}


def test_a_form_is_compiled_off_the_loop(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    made = Grammars.compile
    monkeypatch.setattr(
        Grammars, "compile", lambda *args: threads.append(threading.get_ident()) or made(*args)
    )
    given = params(structured_outputs=StructuredOutputsParams(regex="abc"))
    (*_, last) = asyncio.run(collect(llm, "hi", given, "r"))
    assert last.outputs[0].text == "abc"
    assert threads
    assert threading.get_ident() not in threads


def test_tools_have_a_template_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    plain = Tiny.metadata
    keys = {"tokenizer.chat_template": text, "tokenizer.chat_template.tool_use": text + "{{ tools|length }}"}
    monkeypatch.setattr(Tiny, "metadata", lambda self: plain(self) | keys)
    service, _ = parrot_service(tmp_path, TEXT)
    with LLM.from_service(service) as llm:
        shown = [
            llm.get_tokenizer().decode(llm.chat(CHAT, params(max_tokens=2), **more)[0].prompt_token_ids)
            for more in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"})
        ]
    assert [prompt.strip() for prompt in shown] == ["hi", "hi1", "hi"]


def test_abort_gives_a_last_output(llm: AsyncLLM) -> None:
    llm.parrot.delay = 0.01

    async def main() -> None:
        outputs = []
        async for output in llm.generate("hi", params(), "r1"):
            outputs.append(output)
            if len(outputs) == 2:
                await llm.abort(["r1", "unknown"])
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert len(outputs[-1].outputs[0].token_ids) < len(llm.parrot.answer)
        # At once, before the engine has it.
        task = asyncio.create_task(collect(llm, "hi", params(), "r2"))
        await asyncio.sleep(0)
        await llm.abort("r2")
        assert (await task)[-1].outputs[0].finish_reason == "abort"

    asyncio.run(main())


def test_leaving_and_cancelling_abort(llm: AsyncLLM) -> None:
    llm.parrot.delay = 0.01

    async def main() -> None:
        async with contextlib.aclosing(llm.generate("hi", params(), "left")) as outputs:
            async for _ in outputs:
                break
        task = asyncio.create_task(collect(llm, "hi", params(), "cancelled"))
        while llm._tickets.get("cancelled") is None:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while llm.service.metrics.finished["abort"] < 2:
            await asyncio.sleep(0.001)
        assert not llm.service.loop._engine.has_work

    asyncio.run(asyncio.wait_for(main(), 30))


def test_an_id_is_used_once_at_a_time(llm: AsyncLLM) -> None:
    llm.parrot.delay = 0.005

    async def main() -> None:
        first = asyncio.create_task(collect(llm, "hi", params(), "r"))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="in use"):
            await collect(llm, "hi", params(), "r")
        assert (await first)[-1].outputs[0].text == TEXT
        await collect(llm, "hi", params(), "r")

    asyncio.run(main())


def test_what_is_wrong_is_raised_and_the_next_works(llm: AsyncLLM) -> None:
    async def main() -> None:
        for bad in ("", [99999], 5, {"prompt": "a", "more": 1}):
            with pytest.raises(RequestError):
                await collect(llm, bad, params(), "r")
        llm.parrot.broken = "no more memory"
        with pytest.raises(SpolaError, match="no more memory"):
            await collect(llm, "hi", params(), "r")
        llm.parrot.broken = None
        assert (await collect(llm, "hi", params(), "r"))[-1].outputs[0].text == TEXT

    asyncio.run(main())


def test_shutdown_ends_what_runs(tmp_path: Path) -> None:
    service, parrot = parrot_service(tmp_path, TEXT, delay=0.01)
    llm = AsyncLLM.from_service(service)

    async def main() -> None:
        task = asyncio.create_task(collect(llm, "hi", params(), "r"))
        while llm._tickets.get("r") is None:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(llm.shutdown)
        with pytest.raises(SpolaError, match="shut down"):
            await task
        with pytest.raises(SpolaError, match="shut down"):
            await collect(llm, "hi", params(), "r2")
        llm.shutdown()

    asyncio.run(main())
    assert parrot._config is None


def test_it_loads_a_model_with_the_options_of_llm(tmp_path: Path) -> None:
    path = str(tiny_file(tmp_path))
    with AsyncLLM(path, backend="null", max_num_seqs=3, max_model_len=50) as llm:
        assert llm.service.config.max_seqs == 3
        assert llm.service.config.itl_target_s == 0.1
        (*_, last) = asyncio.run(collect(llm, "hi", params(max_tokens=5, ignore_eos=True), "r"))
        assert len(last.outputs[0].token_ids) == 5
    assert Options().itl_target_s is None
