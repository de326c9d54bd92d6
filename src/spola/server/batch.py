"""``spola batch``'s work: every line of the input answered once, whatever interrupts it.

Results go to OUT.partial as they come, each safe on the disk before the next is counted; at the end they are
put into OUT in the order of the input, and OUT.partial goes away. Started again after a crash, it goes on
where it was. OUT depends only on the input file, the model and the options: ids come from the lines,
``created`` is the time of the input file, and a request without seed gets one from its line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from spola.core.errors import CapacityError, ConfigError, RequestError, SpolaError
from spola.runtime.answer import Job
from spola.runtime.journal import Journal, replace_file
from spola.runtime.loop import QueueMailbox
from spola.runtime.service import Service
from spola.server.asks import ASKS, Ask, Terms, fingerprint
from spola.server.batch_input import BatchInput, Entry
from spola.server.errors import ApiError, error_body, from_spola

__all__ = ["Tally", "batch_salt", "is_complete", "partial_path", "run_batch"]


@dataclass(slots=True)
class Tally:
    """Lines in all, of those found done, and of those with an error as their result."""

    lines: int
    resumed: int = 0
    errors: int = 0


@dataclass(slots=True)
class _Live:
    entry: Entry
    ask: Ask
    jobs: list[Job]

    @property
    def done(self) -> bool:
        return all(job.done for job in self.jobs)


def partial_path(out: Path) -> Path:
    """Where results wait until all are there."""
    return out.with_name(out.name + ".partial")


def batch_salt(service: Service, name: str) -> str:
    """What a line's result depends on beside the line: backend, model, types, template, defaults."""
    template = None if service.template is None else service.template.source
    parts = [fingerprint(service), name, template, dict(service.defaults)]
    return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=16).hexdigest()


def is_complete(source: BatchInput, out: Path) -> bool:
    """Whether ``out`` is the finished output of ``source``.

    Raises ConfigError where there is a file that is something else, which is never overwritten.
    """
    if not out.exists():
        return False
    with out.open("rb") as file:
        for entry in source.entries:
            if not _belongs(file.readline(), entry):
                break
        else:
            if not file.read(1):
                return True
    if partial_path(out).exists():
        return False
    raise ConfigError(f"{out} is there and is not the output of {source.path}; remove it or choose another")


def run_batch(
    service: Service,
    name: str,
    source: BatchInput,
    out: Path,
    *,
    progress: Callable[[Tally, int], None] = lambda tally, left: None,
) -> Tally:
    """Answer what is left of ``source``, then write ``out``. ``name`` is what bodies may call the model.

    Raises ConfigError for files that cannot be used or that belong to another input, SpolaError when the
    engine fails: what is done by then is kept.
    """
    created = int(source.path.stat().st_mtime)
    with Journal(partial_path(out), "custom_id") as journal:
        tally = Tally(len(source.entries))
        _check_journal(journal, source)
        tally.resumed = len(journal.where)
        _Run(service, name, source, journal, tally, created, progress).all()
        replace_file(out, (journal.line(entry.custom_id) for entry in source.entries))
        tally.errors = sum(_failed(journal.line(entry.custom_id)) for entry in source.entries)
        journal.remove()
    return tally


@dataclass(slots=True)
class _Run:
    service: Service
    name: str
    source: BatchInput
    journal: Journal
    tally: Tally
    created: int
    progress: Callable[[Tally, int], None]
    live: dict[int, _Live] = field(default_factory=dict)
    mailbox: QueueMailbox = field(default_factory=QueueMailbox)

    def all(self) -> None:
        """Best priority first, then the order of the input; a bounded number at a time."""
        left = [entry for entry in self.source.entries if entry.custom_id not in self.journal.where]
        left.sort(key=lambda entry: (-entry.priority, -entry.number))
        most = 2 * self.service.config.max_seqs
        try:
            while left or self.live:
                refused: list[dict[str, Any]] = []
                while left and len(self.live) < most and len(refused) < most:
                    refused += self._start(left.pop())
                self._keep(refused, len(left))
                if self.live:
                    self._keep(self._finished(), len(left))
        except BaseException:  # also an interrupt: nothing may go on generating for nobody
            for live in self.live.values():
                self._abort(live.jobs)
            raise

    def _start(self, entry: Entry) -> list[dict[str, Any]]:
        """Queue a line; its result, if it is refused at once."""
        try:
            ask = self._ask(self.source.read(entry))
            params = ask.params
            if params.seed is None:
                params = msgspec.structs.replace(params, seed=int(entry.key[:15], 16))
            how = {**ask.how, "priority": entry.priority or ask.how["priority"]}
            jobs: list[Job] = []
            try:
                jobs += (self.service.submit(ids, params, self.mailbox, **how) for ids in ask.prompts)
            except SpolaError:
                self._abort(jobs)
                raise
        except ApiError as error:
            return [_refusal(entry, error)]
        except (RequestError, CapacityError) as error:
            return [_refusal(entry, from_spola(error))]
        live = _Live(entry, ask, jobs)
        for job in jobs:
            self.live |= dict.fromkeys(job.ids, live)
        return []

    def _abort(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.service.abort(job)

    def _ask(self, line: dict[str, Any]) -> Ask:
        if line.get("method") != "POST":
            raise ApiError(400, f"method must be POST, not {line.get('method')!r:.40}", param="method")
        url, body = line.get("url"), line.get("body")
        make = ASKS.get(url) if isinstance(url, str) else None
        if make is None:
            raise ApiError(400, f"url must be one of {', '.join(sorted(ASKS))}, not {url!r:.80}", param="url")
        if not isinstance(body, dict):
            raise ApiError(400, "the body must be a JSON object")
        # There is no header to tell unknown fields in.
        ask = make(self.service, Terms(model=self.name, strict=True), body)
        if ask.explain:
            raise ApiError(400, "explain is not there in a batch", param="explain")
        if ask.stream:
            raise ApiError(400, "stream is not possible in a batch", param="stream")
        return ask

    def _finished(self) -> list[dict[str, Any]]:
        """Wait for news; the results of what has ended."""
        results = []
        for mail in self.mailbox.get():
            live = self.live.get(mail.id)
            if live is None:
                continue
            next(job for job in live.jobs if mail.id in job.ids).take(mail)
            if live.done:
                for job in live.jobs:
                    for id in job.ids:
                        self.live.pop(id, None)
                results.append(self._result(live))
        return results

    def _result(self, live: _Live) -> dict[str, Any]:
        for choice in (choice for job in live.jobs for choice in job.choices):
            if choice.error is not None:
                if not self.service.loop.alive:
                    raise choice.error  # the engine's end is no result of this line
                return _refusal(live.entry, from_spola(choice.error))
            if choice.finish_reason == "abort":
                raise SpolaError("the engine was shut down")
        live.ask.shape.identify(live.entry.key[:24], self.created)
        body = live.ask.shape.whole(live.jobs)
        # These depend on what else had run, and the output must not.
        del body["usage"]["prompt_tokens_details"], body["usage"]["timing"]
        return _line(live.entry, 200, body)

    def _keep(self, results: list[dict[str, Any]], left: int) -> None:
        if results:
            self.journal.append(results)
            self.progress(self.tally, left + len({id(live) for live in self.live.values()}))


def _check_journal(journal: Journal, source: BatchInput) -> None:
    """Every result there must be of a line as it is now, with these options."""
    entries = {entry.custom_id: entry for entry in source.entries}
    for custom_id in journal.where:
        entry = entries.get(custom_id)
        if entry is None or not _belongs(journal.line(custom_id), entry):
            raise ConfigError(
                f"{journal.path} holds a result for {custom_id!r:.80} that is of another input, model or "
                "options; use the same, or remove the file to start over"
            )


def _belongs(line: bytes, entry: Entry) -> bool:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return (
        isinstance(value, dict)
        and value.get("id") == _batch_id(entry)
        and value.get("custom_id") == entry.custom_id
    )


def _failed(line: bytes) -> bool:
    return bool(msgspec.json.decode(line)["response"]["status_code"] != 200)


def _refusal(entry: Entry, error: ApiError) -> dict[str, Any]:
    return _line(entry, error.status, error_body(error))


def _line(entry: Entry, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req_{entry.key}", "body": body}
    return {"id": _batch_id(entry), "custom_id": entry.custom_id, "response": response, "error": None}


def _batch_id(entry: Entry) -> str:
    return f"batch_req_{entry.key}"
