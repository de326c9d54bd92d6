"""PrefixCache: how much of a request's text has its K and V in blocks already, and which blocks those are.

Whole blocks are taken over by reference; the block in which the known part ends is copied, and the request
goes on writing into its copy. At least one token is left to compute, as a token's logits are not cached.
Full and latent groups need every block of the text, window groups those that the next row still sees.

Only requests that sample read here: a score needs the logits of every position, a mean every hidden state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from spola.engine.kv import GONE, NO_HIT, Hit, KvSpace
from spola.engine.prefix import KeyChain, PrefixIndex, root_key
from spola.engine.request import Request

__all__ = ["PrefixCache"]

_Tail = Callable[[int, int, int], int]


class PrefixCache:
    """Over the blocks of ``kv``. ``fixed_chunk``: hits end at multiples of it or one token before the end.

    ``identity`` names what all requests have in common and K and V depend on, as weights and KV types.
    ``enabled`` False finds nothing and remembers nothing, except between the choices of one request.
    """

    def __init__(
        self, kv: KvSpace, *, fixed_chunk: int | None, identity: Mapping[str, str], enabled: bool
    ) -> None:
        self.enabled = enabled
        self.indexes = tuple(PrefixIndex(pool) for pool in kv.pools)
        self._kv = kv
        self._size = kv.block_size
        self._fixed = fixed_chunk
        self._identity = tuple(("engine", f"{len(k)}:{k}{v}") for k, v in sorted(identity.items()))
        self._windows = tuple(group.window if group.kind == "window" else 0 for group in kv.groups)

    def lookup(self, request: Request) -> Hit:
        """The longest beginning of ``request``'s known ids that need not be computed."""
        most = request.goal - 1
        if most < 1 or not self.reads(request):
            return NO_HIT
        known, size, chain = request.known, self._size, self._chain(request)
        full = [g for g, window in enumerate(self._windows) if not window]
        have = [array("i") for _ in self.indexes]
        n = most // size
        for g in full:
            n = min(n, self._run(g, have[g], known, chain, n))
        for g, window in enumerate(self._windows):
            if window:
                have[g].extend(self._find(g, known, chain, i) for i in range(n))

        def tail(g: int, k: int, rest: int) -> int:
            tokens = known[k * size : k * size + rest].tobytes()
            common, block = self.indexes[g].longest(chain.at(known, k), tokens)
            return block if common == rest else GONE

        rest = known[n * size : min(most, n * size + size)].tobytes()
        parent = chain.at(known, n)
        more = min(self.indexes[g].longest(parent, rest)[0] for g in (full or range(len(have))))
        return self._best(min(n * size + more, most), most, have, tail)

    def reads(self, request: Request) -> bool:
        """Whether ``request`` may start from what others have computed."""
        return self.enabled and request.want == "sample" and not request.lists_prompt

    def next_block(self, tokens: int) -> int:
        """Where the block after the first ``tokens`` ends."""
        return (tokens // self._size + 1) * self._size

    def siblings(self, request: Request, leader: Request) -> Hit:
        """As ``lookup``, for a choice of the request whose first choice is ``leader`` and is running."""
        most = request.goal - 1
        shared = min(most, request.n_prompt, leader.computed)
        have = [table.ids for table in leader.tables]
        return self._best(shared, most, have, lambda g, k, rest: GONE)

    def publish(self, request: Request) -> None:
        """Offer the full blocks of computed tokens that are new. Called before blocks are given back."""
        size = self._size
        n = min(request.computed, len(request.known)) // size
        if not self.enabled or not request.tables:
            request.next_full = 1 << 62
            return
        chain = self._chain(request)
        for i in range(chain.published, n):
            parent, key = chain.at(request.known, i), chain.at(request.known, i + 1)
            tokens = request.known[i * size : (i + 1) * size].tobytes()
            for index, table in zip(self.indexes, request.tables, strict=True):
                if i >= table.first:
                    index.publish(table.ids[i], key, parent, tokens)
        chain.published = max(chain.published, n)
        request.next_full = (chain.published + 1) * size

    def clear(self) -> None:
        """Forget every text; blocks in use stay with their owners."""
        for index in self.indexes:
            index.clear()

    def _chain(self, request: Request) -> KeyChain:
        if request.chain is None:
            extras = list(self._identity)
            if request.adapter is not None:
                extras.append(("adapter", request.adapter))
            if request.salt is not None:
                extras.append(("salt", request.salt))
            request.chain = KeyChain(root_key(extras), self._size)
        return request.chain

    def _find(self, g: int, known: array[int], chain: KeyChain, i: int) -> int:
        tokens = known[i * self._size : (i + 1) * self._size].tobytes()
        block = self.indexes[g].find(chain.at(known, i + 1), chain.at(known, i), tokens)
        return GONE if block is None else block

    def _run(self, g: int, have: array[int], known: array[int], chain: KeyChain, most: int) -> int:
        """Fill ``have`` with the blocks of the text without a gap, ``most`` at most; how many there are."""
        for i in range(most):
            block = self._find(g, known, chain, i)
            if block == GONE:
                break
            have.append(block)
        return len(have)

    def _best(self, best: int, most: int, have: Sequence[array[int]], tail: _Tail) -> Hit:
        for tokens in self._ends(best, most):
            hit = self._hit(tokens, have, tail)
            if hit is not None:
                return hit
        return NO_HIT

    def _ends(self, best: int, most: int) -> Iterator[int]:
        """Lengths that a hit may have, falling from ``best``."""
        step = self._fixed or self._size
        if best > 0 and (self._fixed is None or best == most) and best % step:
            yield best
        yield from range(best - best % step, 0, -step)

    def _hit(self, tokens: int, have: Sequence[array[int]], tail: _Tail) -> Hit | None:
        """The blocks of the first ``tokens`` positions; None if one that is needed is missing."""
        whole, rest = divmod(tokens, self._size)
        tables, firsts, sources = [], [], []
        for g, window in enumerate(self._windows):
            first = max(0, tokens - window + 1) // self._size if window else 0
            blocks = have[g][first:whole]
            if len(blocks) < whole - first or GONE in blocks:
                return None
            source = GONE
            if rest:  # also where no row sees what is copied: a published block holds all of its text
                source = have[g][whole] if whole < len(have[g]) else GONE
                source = source if source != GONE else tail(g, whole, rest)
                if source == GONE:
                    return None
            tables.append(array("i", [GONE]) * first + blocks)
            firsts.append(first)
            sources.append(source)
        return Hit(tokens, tuple(tables), tuple(firsts), tuple(sources))
