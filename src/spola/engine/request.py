"""Request: one choice of one request, as the engine sees it.

There are no phases. ``known`` holds the prompt and what was generated, ``computed`` says for how many of
those the K and V are in the cache, and every step moves ``computed`` toward ``goal``. Prefill, chunked
prefill, decode, recomputing after a preemption and verifying drafts are all this one rule.

Only the scheduler changes a Request after it is added.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spola.core.errors import RequestError
from spola.core.guard import Guard
from spola.core.params import SamplingParams
from spola.core.step import RequestState, Want, pack_ids
from spola.engine.events import FinishReason, Summary
from spola.engine.kv import BlockTable
from spola.engine.prefix import KeyChain

__all__ = ["Rank", "Request", "Status"]


class Status(enum.Enum):
    NEW = "new"  # not yet added
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


class Rank(NamedTuple):
    """Order of service, best first: smaller sorts before larger. Kept through preemptions.

    Only the class changes, of a request that waits for long.
    """

    priority: int  # class; 0 is the default, lower goes first
    tag: float  # virtual start tag of fair queueing
    arrival: int  # position in the order of ``Scheduler.add``


class Request:
    """One sequence of tokens to extend, score or embed.

    ``id`` is unique in an engine and never reused; choice i of the n of a request has its own id, and
    ``leader`` is the id of choice 0 for all of them: they share its prompt's blocks. ``key`` is whose request
    it is: keys get shares in proportion to their ``weight``. ``deadline_s`` ends it with an error, on the
    clock of ``schedule``; so does ``start_by_s`` if it was never admitted before.
    ``eos_ids`` end the text unless ``params.ignore_eos``; ``params.stop_token_ids`` always do.
    ``head_from`` is, for the wants "score" and "logits", the first position whose head is computed: a
    score request gives the log-probability of every id after it. ``bad_ids`` are sequences that the output
    must not complete.
    """

    __slots__ = (
        "aborted",
        "accepted",
        "adapter",
        "arrival_s",
        "bad_ids",
        "chain",
        "choice",
        "computed",
        "deadline_s",
        "drafted",
        "drafts",
        "eos_ids",
        "expired",
        "finish_reason",
        "first_token_s",
        "guard",
        "head_from",
        "id",
        "in_flight",
        "key",
        "known",
        "last_token_s",
        "leader",
        "limit",
        "longest_gap_s",
        "n_cached",
        "n_prompt",
        "next_full",
        "params",
        "passed",
        "peak_computed",
        "preemptions",
        "priority",
        "proposals",
        "rank",
        "salt",
        "scheduled_s",
        "seed",
        "sent",
        "start_by_s",
        "status",
        "stop_ids",
        "tables",
        "waiting_since",
        "want",
        "weight",
    )

    def __init__(
        self,
        *,
        id: int,
        ids: Iterable[int],
        params: SamplingParams,
        seed: int = 0,
        choice: int = 0,
        want: Want = "sample",
        eos_ids: Iterable[int] = (),
        guard: Guard | None = None,
        adapter: str | None = None,
        priority: int = 0,
        key: str = "",
        weight: float = 1.0,
        leader: int | None = None,
        deadline_s: float | None = None,
        start_by_s: float | None = None,
        arrival_s: float = 0.0,
        head_from: int = 0,
        salt: str | None = None,
        bad_ids: Iterable[Sequence[int]] = (),
    ) -> None:
        self.id = id
        self.choice = choice
        self.seed = seed
        try:
            self.known = array("i", ids)
        except (OverflowError, TypeError):
            raise RequestError(
                "the prompt holds a token id that is no 32-bit integer", param="prompt"
            ) from None
        self.n_prompt = len(self.known)
        self.computed = 0
        self.params = params
        self.want: Want = want
        self.eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self.stop_ids = frozenset(params.stop_token_ids)
        self.bad_ids = tuple(tuple(ids) for ids in bad_ids)
        self.guard = guard
        self.adapter = adapter
        self.priority = priority
        self.key = key
        self.leader = leader
        self.weight = weight
        self.deadline_s = deadline_s
        self.start_by_s = start_by_s
        self.rank = Rank(priority, 0.0, -1)
        self.head_from = head_from
        self.salt = salt

        self.status = Status.NEW
        self.finish_reason: FinishReason | None = None
        self.tables: tuple[BlockTable, ...] = ()  # one per KvGroup
        self.limit = 0  # tokens known at most, set by Scheduler.add
        self.in_flight = False  # in a Step that is not committed yet
        self.aborted = False  # to be ended when its Step comes back
        self.expired = False  # the same, because its deadline has passed
        self.passed = 0  # requests that began before it because it did not fit
        self.waiting_since = arrival_s
        self.sent = False  # the backend holds its state
        self.drafts: Sequence[int] = ()  # guesses of the next tokens, tried in the next step
        self.proposals = 0  # handle of what they were drawn from, for rejection mode
        self.peak_computed = 0
        self.chain: KeyChain | None = None  # keys of the prefix cache, once it was asked
        self.next_full = 0  # computed positions at which there is a block for the prefix cache
        self.n_cached = 0  # prompt tokens found in the cache when first admitted
        self.preemptions = 0
        self.drafted = 0  # drafts verified so far
        self.accepted = 0
        self.arrival_s = arrival_s
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.longest_gap_s = 0.0

    @property
    def goal(self) -> int:
        """Positions to compute as things stand: the last id of a scored text needs no row."""
        return len(self.known) - (self.want == "score")

    # Asked for several times per request and step: written out.

    @property
    def missing(self) -> int:
        return len(self.known) - (self.want == "score") - self.computed

    @property
    def decoding(self) -> bool:
        """One row away from all that is known."""
        return len(self.known) - (self.want == "score") - self.computed == 1

    @property
    def lists_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be given: their rows must be computed."""
        return self.params.prompt_logprobs is not None and self.head_from < self.n_prompt - 1

    @property
    def n_output(self) -> int:
        return len(self.known) - self.n_prompt

    @property
    def reach(self) -> int:
        """Positions reserved at admission: all that is known and one token more, if there will be one."""
        return min(self.goal + 1, self.limit - 1) if self.want == "sample" else self.goal

    def state(self) -> RequestState:
        """What the backend is told when the request is first scheduled."""
        return RequestState(
            id=self.id,
            choice=self.choice,
            seed=self.seed,
            ids=self.known.tobytes(),
            n_prompt=self.n_prompt,
            params=self.params,
            adapter=self.adapter,
            want=self.want,
            ends=pack_ids(sorted(self.eos_ids | self.stop_ids)) if self.params.min_tokens else b"",
            bad=tuple(pack_ids(ids) for ids in self.bad_ids),
        )

    def got_tokens(self, now: float) -> None:
        """Note that tokens came at ``now``."""
        if self.last_token_s is None:
            self.first_token_s = now
        else:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_token_s)
        self.last_token_s = now

    def summary(self, now: float) -> Summary:
        return Summary(
            n_prompt=self.n_prompt,
            n_output=self.n_output,
            n_cached=self.n_cached,
            preemptions=self.preemptions,
            arrival_s=self.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=now,
            longest_gap_s=self.longest_gap_s,
            n_drafted=self.drafted,
            n_accepted=self.accepted,
        )

    def check(self) -> None:
        """Raise AssertionError unless the request's own fields agree with each other."""
        assert 0 <= self.computed <= self.goal, f"request {self.id}: computed {self.computed} of {self.goal}"
        assert self.n_prompt <= len(self.known) <= max(self.limit, self.n_prompt), (
            f"request {self.id}: too long"
        )
        if self.status is Status.RUNNING:
            assert self.missing > 0, f"request {self.id} runs with nothing to compute"
            assert self.sent, f"request {self.id} runs unknown to the backend"
        else:
            assert not self.in_flight, f"request {self.id} is in flight but {self.status.value}"
            assert not self.sent, f"request {self.id} is {self.status.value} but the backend holds it"
        if self.status is Status.WAITING:
            assert self.computed == 0, f"request {self.id} waits with computed tokens"

    def __repr__(self) -> str:
        progress = f"{self.computed}/{len(self.known)}"
        return f"<Request {self.id} {self.status.value} {progress} rank {tuple(self.rank)}>"
