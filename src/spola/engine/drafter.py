"""Drafter: a smaller model of the same tokens that guesses what the served one will say.

It has a Runner and KV blocks of its own, and its own prefix cache over them. Before a step is planned it
computes what it has not seen yet of each request and then one token after the other, all requests together.
In match mode it draws with the parameters and the random numbers of the request itself: the better the two
models agree, the more often both draw the same token, also when sampling. In rejection mode it draws with
numbers of its own, and the backend holds what it drew from. Its faults end drafting, never a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from spola.core.runner import DraftHolder, Runner
from spola.core.step import RequestState, Slice, SliceOutput, Step, pack_ids
from spola.engine.hits import PrefixCache
from spola.engine.kv import KvSpace
from spola.engine.propose import Text
from spola.engine.request import Request, Status
from spola.engine.speculate import StepCost, StepTimes

__all__ = ["DraftRule", "Drafter"]

DraftRule = Literal["match", "rejection"]

_FEW = 16  # rows that are computed along with the first draft rather than before


class _Shadow(Request):
    """``owner`` as the draft model sees it: the same ids, its own positions and blocks."""

    __slots__ = ("fed", "owner")

    def __init__(self, owner: Request) -> None:
        super().__init__(
            id=owner.id,
            ids=(),
            params=msgspec.structs.replace(owner.params, logprobs=None, prompt_logprobs=None),
            seed=owner.seed,
            choice=owner.choice,
            salt=owner.salt,
            bad_ids=owner.bad_ids,
        )
        self.known, self.n_prompt = owner.known, owner.n_prompt
        self.eos_ids = owner.eos_ids
        self.owner = owner
        self.fed: list[int] = []  # drafts behind the known ids that were computed


class _Lane:
    """One request in one round: ``tail`` are the ids to compute next, from position ``at`` on."""

    __slots__ = ("at", "drafts", "handle", "most", "request", "shadow", "tail", "told")

    def __init__(self, request: Request, shadow: _Shadow, most: int, handle: int) -> None:
        self.request = request
        self.shadow = shadow
        self.most = most
        self.handle = handle
        self.at = shadow.computed
        self.tail = shadow.known[shadow.computed :]
        self.drafts: list[int] = []
        self.told = False  # the runner has been given the request as it is now


class Drafter:
    """A loaded draft model over the blocks of ``kv``; also the Proposer that a Speculator wants.

    ``target`` gives the time of a step of the served model, of which one of this takes about ``ratio`` as
    long until some have run. ``max_rows``, ``max_len``: of the runner. ``allowed``: bits of the ids that it
    may draw, None for all. ``identity`` is what its K and V depend on beside the text.
    """

    def __init__(
        self,
        runner: Runner,
        kv: KvSpace,
        target: StepCost,
        *,
        ratio: float,
        max_rows: int,
        max_len: int,
        identity: dict[str, str],
        rule: DraftRule = "match",
        allowed: bytes | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self.cost = StepTimes(lambda rows: target(rows) * ratio)
        self.failure: str | None = None
        self.seconds = 0.0
        self.steps = 0
        self.runner = runner
        self.kv = kv
        self._target = target
        self._max_rows = max_rows
        self._max_len = max_len
        self._rule = rule
        self._allowed = allowed
        self._cache = PrefixCache(kv, fixed_chunk=None, identity=identity, enabled=prefix_cache)
        self._shadows: dict[int, _Shadow] = {}
        self._known: set[int] = set()  # ids of requests that the runner holds
        self._gone: list[int] = []

    def propose(self, text: Text, most: int) -> Sequence[int]:
        """Nothing: what there is was drafted before the step."""
        return ()

    def forget(self, text: Text) -> None:
        """Give the blocks of a request back. Idempotent."""
        shadow = self._shadows.pop(text.id, None)
        if shadow is None:
            return
        lost = {(g, block) for g, table in enumerate(shadow.tables) for block in table.ids[table.first :]}
        self.kv.copies = [copy for copy in self.kv.copies if (copy.group, copy.target) not in lost]
        self.kv.release(shadow)
        if text.id in self._known:
            self._known.discard(text.id)
            self._gone.append(text.id)
        if isinstance(self.runner, DraftHolder):
            self.runner.drop(text.id + 1)

    def draft(self, asks: Sequence[tuple[Request, int]]) -> float:
        """Set the ``drafts`` of the requests asked for, in rank order, at most so many of each.

        A request whose text is far from computed here gets none yet. Gives the seconds that it took.
        """
        if self.failure is not None or not asks:
            return 0.0
        before = self.seconds
        try:
            self._draft(asks)
        except Exception as error:
            self.failure = f"the draft model failed: {type(error).__name__}: {error}"
            self._forget_all()
        except BaseException:  # an interrupt: what was computed is not known
            self._forget_all()
            raise
        return self.seconds - before

    def hand_over(self, step: Step, target: Runner) -> None:
        """Give ``target`` the distributions that the drafts of ``step`` were drawn from."""
        for piece in step.slices:
            if piece.proposals and isinstance(target, DraftHolder):
                target.adopt(piece.proposals, self.runner)

    def close(self) -> None:
        """Free the runner. Idempotent."""
        self.runner.close()

    def _draft(self, asks: Sequence[tuple[Request, int]]) -> None:
        for known in list(self._shadows.values()):
            if known.owner.status is not Status.RUNNING:
                self.forget(known)
        lanes = []
        for request, most in asks:
            most = min(most, self._max_len - len(request.known) + 1)
            shadow = self._follow(request) if most > 0 else None
            if shadow is not None:
                lanes.append(_Lane(request, shadow, most, self._handle(request)))
        self._catch_up(lanes)
        lanes = [lane for lane in lanes if lane.shadow.tables and len(lane.tail) <= _FEW]
        for lane in lanes:
            if lane.handle and isinstance(self.runner, DraftHolder):
                self.runner.drop(lane.handle)
        live = lanes
        while live:
            live = self._guess(live)
        for lane in lanes:
            if lane.drafts and lane.shadow.tables:
                lane.request.drafts, lane.request.proposals = tuple(lane.drafts), lane.handle
                lane.shadow.fed = lane.drafts[: lane.at - lane.shadow.computed]

    def _handle(self, request: Request) -> int:
        return request.id + 1 if self._rule == "rejection" and not request.params.greedy else 0

    def _follow(self, request: Request) -> _Shadow | None:
        """The shadow of ``request``, its computed positions those that still hold; None: no blocks."""
        shadow = self._shadows.get(request.id)
        if shadow is None:
            shadow = _Shadow(request)
            spare = (0,) * len(self.kv.pools)
            hit = self._cache.lookup(shadow)
            if not self.kv.reserve(shadow, 0, spare=spare, hit=hit):
                return None
            shadow.computed = hit.tokens
            self._shadows[request.id] = shadow
        for token in shadow.fed:
            if shadow.missing == 1 or shadow.known[shadow.computed] != token:
                break
            shadow.computed += 1
        shadow.fed = []
        self._settle(shadow)
        return shadow

    def _settle(self, shadow: _Shadow) -> None:
        """Offer what is computed to others, give back what windows have left."""
        if shadow.computed >= shadow.next_full:
            self._cache.publish(shadow)
        self.kv.trim(shadow, shadow.computed)

    def _catch_up(self, lanes: Sequence[_Lane]) -> None:
        """Compute what is missing of long texts; for no longer than a step takes, if others wait."""
        left = self._patience(len(lanes))
        while left > 0:
            pieces = []
            rows = min(left, self._max_rows)
            for lane in lanes:
                n = min(len(lane.tail) - 1, rows)
                if not lane.shadow.tables or len(lane.tail) <= _FEW or n <= 0 or not self._room(lane, n):
                    continue
                rows -= n
                pieces.append((lane, lane.tail[:n]))
            if not pieces:
                return
            self._run(pieces, draw=False)
            for lane, ids in pieces:
                if lane.shadow.tables:
                    lane.shadow.computed = lane.at
                    self._settle(lane.shadow)
                left -= len(ids)

    def _patience(self, lanes: int) -> int:
        """Rows of catching up before the others go on: as many as a step of theirs is long."""
        if lanes == 1:
            return self._max_len
        rows, most = _FEW, self._target(max(lanes, 1))
        while rows < self._max_rows and self.cost(rows + _FEW) <= most:
            rows += _FEW
        return rows

    def _guess(self, lanes: Sequence[_Lane]) -> list[_Lane]:
        """One more draft for each of ``lanes``; those that want another."""
        pieces = []
        left = self._max_rows
        for lane in lanes:
            if lane.shadow.tables and len(lane.tail) <= left and self._room(lane, len(lane.tail)):
                pieces.append((lane, lane.tail))
                left -= len(lane.tail)
        if not pieces:
            return []
        first = {lane.request.id for lane, _ in pieces if not lane.drafts}
        out = []
        for (lane, _), got in zip(pieces, self._run(pieces, draw=True), strict=True):
            if got.error is not None or not got.ids:
                self.forget(lane.request)
                continue
            if lane.request.id in first:
                lane.shadow.computed = len(lane.shadow.known)
            token = got.ids[0]
            ends = token in lane.request.eos_ids or token in lane.request.stop_ids
            if not ends or lane.handle:  # in match mode the row before gives the end anyway
                lane.drafts.append(token)
            lane.tail = array("i", [token])
            if not ends and len(lane.drafts) < lane.most:
                out.append(lane)
        return out

    def _room(self, lane: _Lane, rows: int) -> bool:
        """Blocks for ``rows`` more, if need be from a request of worse rank."""
        while not self.kv.extend(lane.shadow, lane.at + rows):
            worst = max(self._shadows.values(), key=lambda shadow: shadow.owner.rank)
            if worst.owner.rank <= lane.request.rank:
                return False
            self.forget(worst)
        return True

    def _run(self, pieces: Sequence[tuple[_Lane, array[int]]], *, draw: bool) -> Sequence[SliceOutput]:
        """One step of the draft model; moves the lanes on."""
        new: list[RequestState] = []
        slices = []
        for lane, ids in pieces:
            if not lane.told:
                lane.told = True
                if lane.request.id in self._known:
                    self._gone.append(lane.request.id)
                self._known.add(lane.request.id)
                new.append(lane.shadow.state())
            slices.append(
                Slice(
                    id=lane.request.id,
                    start=lane.at,
                    ids=pack_ids(ids),
                    tables=tuple(table.ids.tobytes() for table in lane.shadow.tables),
                    n_head=int(draw),
                    masks=self._allowed if draw else None,
                    proposals=lane.handle if draw else 0,
                )
            )
            lane.at += len(ids)
            lane.tail = lane.tail[len(ids) :]
        gone, self._gone = tuple(self._gone), []
        copies, self.kv.copies = tuple(self.kv.copies), []
        step = Step(self.steps, tuple(slices), new=tuple(new), gone=gone, copies=copies)
        self.steps += 1
        output = self.runner.execute(step)
        self.seconds += output.elapsed_s
        self.cost.add(step.n_rows, output.elapsed_s)
        return output.slices

    def _forget_all(self) -> None:
        for shadow in list(self._shadows.values()):
            self.forget(shadow)
        self.kv.copies = []
