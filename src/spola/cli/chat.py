"""A chat on a terminal: history is kept, Ctrl-C stops an answer, Ctrl-D leaves."""

from __future__ import annotations

import contextlib

from spola.cli.output import note, write
from spola.core.errors import RequestError, SpolaError
from spola.core.params import SamplingParams
from spola.runtime.answer import Job
from spola.runtime.loop import QueueMailbox
from spola.runtime.service import Service

__all__ = ["chat"]

Messages = list[dict[str, str]]


def chat(service: Service, params: SamplingParams, history: Messages) -> None:
    """Talk until end of input. ``history`` may hold a system message and is extended."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() line editing and history)
    note(f"{service.config.model}: Ctrl-C stops an answer, Ctrl-D leaves")
    while True:
        try:
            line = input("> ")
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            continue
        if not line.strip():
            continue
        history.append({"role": "user", "content": line})
        try:
            answer = _turn(service, params, history)
        except SpolaError as error:
            note(f"spola: error: {error}")
            history.pop()
            continue
        history.append({"role": "assistant", "content": answer})


def _turn(service: Service, params: SamplingParams, history: Messages) -> str:
    """Answer the last message; what was said until an interrupt counts as the answer."""
    mailbox = QueueMailbox()
    job = _submit(service, params, history, mailbox)
    try:
        _print(job, mailbox)
    except KeyboardInterrupt:
        service.abort(job)
        note(" (stopped)")
    except BaseException:
        service.abort(job)
        raise
    return job.choices[0].text


def _submit(service: Service, params: SamplingParams, history: Messages, mailbox: QueueMailbox) -> Job:
    """Queue the conversation, without its oldest exchanges where it has grown too long."""
    while True:
        try:
            adapter = next(iter(service.config.adapters), None)
            return service.submit(service.chat_ids(history), params, mailbox, adapter=adapter)
        except RequestError as error:
            first = 1 if history[0]["role"] == "system" else 0
            if error.code != "context_length_exceeded" or len(history) - first < 3:
                raise
            del history[first : first + 2]
            note("(the oldest exchange is forgotten: the conversation has outgrown the context)")


def _print(job: Job, mailbox: QueueMailbox) -> None:
    while not job.done:
        for mail in mailbox.get():
            delta = job.take(mail)
            if delta.error is not None:
                raise delta.error
            write(delta.text)
    write("\n")
