"""The engine thread under pressure: every request ends once, whatever is aborted or closed meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from spola.core.errors import SpolaError
from spola.core.params import SamplingParams
from spola.runtime.answer import Job
from spola.runtime.config import Options
from spola.runtime.loop import AsyncMailbox, Mail, QueueMailbox, Refusal
from spola.runtime.service import Service
from support.service import parrot_service
from support.waiting import PATIENCE_S, until


@pytest.fixture
def service(tmp_path: Path):
    options = Options(backend="null", max_seqs=6, max_step_tokens=48, kv_memory=1 << 20)
    service, parrot = parrot_service(tmp_path, "the cat sat on the mat", options=options)
    service.parrot = parrot
    yield service
    service.close()


def params(rng: random.Random) -> SamplingParams:
    stop = ("mat",) if rng.random() < 0.3 else ()
    return SamplingParams(
        temperature=0, max_tokens=rng.randint(1, 40), ignore_eos=rng.random() < 0.3, stop=stop
    )


def client(service: Service, seed: int, ended: dict[int, list[str]]) -> None:
    rng = random.Random(seed)
    mailbox = QueueMailbox()
    jobs: list[Job] = []
    for _ in range(25):
        ids = [rng.randrange(256) for _ in range(rng.randint(1, 120))]
        jobs.append(service.submit(ids, params(rng), mailbox))
        if rng.random() < 0.4:
            service.abort(rng.choice(jobs))
    by_id = {id: job for job in jobs for id in job.ids}
    while not all(job.done for job in jobs):
        for mail in mailbox.get():
            delta = by_id[mail.id].take(mail)
            if delta.finish_reason is not None:
                ended.setdefault(mail.id, []).append(delta.finish_reason)


def test_clients_that_submit_and_abort_at_random(service: Service) -> None:
    ended: dict[int, list[str]] = {}
    threads = [threading.Thread(target=client, args=(service, seed, ended)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(ended) == 6 * 25
    assert all(len(reasons) == 1 for reasons in ended.values())
    seen = {reasons[0] for reasons in ended.values()}
    assert seen == {"stop", "length", "abort"}
    assert not service.loop._engine.has_work
    assert not service.loop._mailboxes


def test_one_post_per_step_for_all_requests_of_a_mailbox(service: Service) -> None:
    class Counting(QueueMailbox):
        posts = 0

        def post(self, mail: list[Mail]) -> None:
            self.posts += 1
            super().post(mail)

    mailbox = Counting()
    jobs = [
        service.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=10), mailbox) for _ in range(4)
    ]
    by_id = {id: job for job in jobs for id in job.ids}
    while not all(job.done for job in jobs):
        for mail in mailbox.get():
            by_id[mail.id].take(mail)
    assert mailbox.posts <= service.loop._engine.scheduler.stats.steps


def test_mail_for_an_event_loop_is_delivered_on_its_thread(service: Service) -> None:
    async def main() -> set[int]:
        done = asyncio.Event()
        threads: set[int] = set()

        def deliver(mail: list[Mail]) -> None:
            threads.add(threading.get_ident())
            for piece in mail:
                if job.take(piece).finish_reason:
                    done.set()

        mailbox = AsyncMailbox(asyncio.get_running_loop(), deliver)
        job = service.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=5), mailbox)
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        return threads

    assert asyncio.run(main()) == {threading.get_ident()}


def test_mail_for_an_event_loop_that_is_gone_is_dropped(service: Service) -> None:
    loop = asyncio.new_event_loop()
    mailbox = AsyncMailbox(loop, lambda mail: None)
    loop.close()
    service.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=5), mailbox)
    until(lambda: not service.loop._mailboxes)
    assert service.loop.alive


def test_close_tells_everybody_who_waits(service: Service) -> None:
    service.parrot.delay = 0.01
    mailbox = QueueMailbox()
    plain = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
    jobs = [service.submit([1, 2, 3], plain, mailbox) for _ in range(12)]
    service.close()
    by_id = {id: job for job in jobs for id in job.ids}
    refused = 0
    while not all(job.done for job in jobs):
        for mail in mailbox.get():
            by_id[mail.id].take(mail)
            refused += isinstance(mail, Refusal)
    assert refused == 12
    with pytest.raises(SpolaError, match="shut down"):
        service.submit([1], plain, mailbox)


def test_a_dropped_llm_frees_its_engine(tmp_path: Path) -> None:
    from spola import LLM

    service, _ = parrot_service(tmp_path)
    llm = LLM.from_service(service)
    assert service.loop.alive
    del llm
    assert not service.loop.alive
