"""Plan: the slices of one step while they are being chosen, and the room that is left for more.

What a backend allows in one step is decided here and nowhere else. It knows no queues and no blocks.
"""

from __future__ import annotations

from array import array

from spola.core.step import Slice
from spola.engine.cost_model import FLOOR_ROWS, StepBudget, Work
from spola.engine.limits import Shape
from spola.engine.request import Request

__all__ = ["Plan"]


class Plan:
    """Slices chosen so far: ``entries`` are (request, rows, drafts) in the order of choice.

    ``budget`` bounds the prompt rows, None does not; to those of a short step, as long as ``short``. A
    backend with fixed chunks has a bound in any case.
    """

    __slots__ = (
        "_bound",
        "_budget",
        "_context",
        "_prefills",
        "_prompt_rows",
        "_rows",
        "_shape",
        "_singles",
        "_work",
        "entries",
        "head",
        "preempted",
        "short",
        "victims",
    )

    def __init__(self, shape: Shape, budget: StepBudget | None = None, *, short: bool = False) -> None:
        self.entries: list[tuple[Request, int, int]] = []
        self.preempted = False  # for the blocks of a decode: nobody is admitted in such a step
        self.victims: set[int] = set()  # ids of those who were preempted
        self.head: Request | None = None  # the waiting one for whom some of them were
        self._shape = shape
        self._rows = shape.rows
        self._context = shape.context
        self._singles = 0
        self._prefills = 0
        self._budget = budget
        self.short = short
        self._bound: int | None = None  # on the rows of all prompts
        self._work = Work()
        self._prompt_rows = 0

    def prompt_room(self, start: int) -> int:
        """Rows that prompts can have together, those chosen included, if the next begins at ``start``."""
        return self._prompts_fit(self._rows, start) + self._prompt_rows

    @property
    def prompt_rows(self) -> int:
        """Rows of prompts chosen so far."""
        return self._prompt_rows

    def hold(self, rows: int) -> int:
        """Prompts get no more than ``rows`` together, or what they were held to before. Gives that bound."""
        self._bound = rows if self._bound is None else min(self._bound, rows)
        return self._bound

    def crowd_out(self) -> int:
        """Further prompts get together as many rows as there are, or a few. Gives the rows of all prompts."""
        return self.hold(self._prompt_rows + max(self._prompt_rows, FLOOR_ROWS))

    def _prompts_fit(self, n: int, start: int) -> int:
        """``n`` rows of a prompt from ``start`` on, or as many of them as fit beside what is chosen."""
        if self._budget is not None:
            n = min(n, self._budget.rows(self._work, self._prompt_rows, start, short=self.short))
        if self._bound is not None:
            n = min(n, self._bound - self._prompt_rows)
        return n

    def rows(self, request: Request, most: int | None = None) -> int:
        """Rows that the next slice of ``request`` may have now, without drafts; 0 = none in this step.

        ``most`` bounds them, unless the backend's chunks are fixed. A slice of one row is a decode to a
        backend, whatever it is of the request.
        """
        shape = self._shape
        missing = request.missing
        n = min(missing, self._rows, shape.chunk)
        if most is not None and shape.fixed_chunk is None:
            n = min(n, most)
        if self._context is not None:
            n = min(n, self._context - request.computed)
        if missing > 1:
            n = self._prompts_fit(n, request.computed)
        if shape.fixed_chunk is not None and n < min(missing, shape.fixed_chunk):
            return 0
        if n > 1 and (self._prefills >= shape.prefills or (self._singles and not shape.mixed)):
            return 0
        if n == 1 and self._prefills and not shape.mixed:
            return 0
        return max(n, 0)

    def draft_room(self, request: Request, others: int) -> int:
        """Drafts that fit beside ``others`` rows yet to be chosen; none under a bounded context."""
        if not self._shape.speculation or self._context is not None:
            return 0
        room = min(self._rows - others, self._shape.chunk - 1, request.limit - len(request.known) - 1)
        return max(0, room)

    def add(self, request: Request, rows: int, drafts: int = 0) -> None:
        """Take a slice of ``rows`` known tokens and ``drafts`` guesses in."""
        total = rows + drafts
        self.entries.append((request, rows, drafts))
        request.in_flight = True
        self._rows -= total
        if self._budget is not None:
            self._work.add(request.computed, total, 1 + drafts if request.missing == rows else 0)
        if not request.decoding:
            self._prompt_rows += total
        if self._context is not None:
            self._context -= request.computed + total
        if rows == 1:
            self._singles += 1
        else:
            self._prefills += 1

    def grow(self, index: int) -> int:
        """Give the slice at ``index`` of ``entries``, of a prompt, what room is left; rows that it gained."""
        request, rows, _ = self.entries[index]
        n = min(request.missing - rows, self._rows, self._shape.chunk - rows)
        if self._context is not None:
            n = min(n, self._context)
        n = self._prompts_fit(n, request.computed + rows)
        if rows == 1 or n <= 0:
            return 0
        self.entries[index] = request, rows + n, 0
        self._rows -= n
        self._prompt_rows += n
        if self._context is not None:
            self._context -= n
        if self._budget is not None:
            self._work.add(request.computed + rows, n, request.missing == rows + n)
        return n

    @property
    def chosen(self) -> int:
        """Rows chosen so far."""
        return self._shape.rows - self._rows

    @property
    def decodes(self) -> bool:
        """Whether one-row slices were chosen."""
        return self._singles > 0

    def slices(self) -> tuple[Slice, ...]:
        """The slices in rank order."""
        self.entries.sort(key=lambda entry: entry[0].rank)
        return tuple([_slice(*entry) for entry in self.entries])


def _slice(request: Request, rows: int, drafts: int) -> Slice:
    start = request.computed
    end = start + rows
    ids = request.known[start:end]
    n_head, targets = 0, b""
    if request.want == "sample":
        if end == len(request.known):
            n_head = 1 + drafts
            if drafts:
                ids += array("i", request.drafts[:drafts])
        if request.params.prompt_logprobs is not None:
            # Rows up to the last but one of the prompt; never again after they were given.
            n_targets = max(0, min(end, request.n_prompt - 1) - max(start, request.head_from))
            n_head += n_targets
            first = end - n_head + drafts
            targets = request.known[first + 1 : first + 1 + n_targets].tobytes()
    elif request.want in ("score", "logits"):
        n_head = max(0, end - max(start, request.head_from))
        if request.want == "score":
            targets = request.known[end - n_head + 1 : end + 1].tobytes()
    return Slice(
        id=request.id,
        start=start,
        ids=ids.tobytes(),
        tables=tuple([table.ids.tobytes() for table in request.tables]),
        n_head=n_head,
        n_drafts=drafts,
        targets=targets,
        proposals=request.proposals if drafts else 0,
    )
