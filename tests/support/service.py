"""A Service over a tiny model whose backend says what the test wants it to say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spola.backends.null import NullRunner
from spola.core.step import RequestState, Step, StepOutput
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.service import Service
from support.tiny import Tiny, write_tiny_gguf

__all__ = ["Parrot", "parrot_service", "tiny_file"]


def tiny_file(folder: Path, **shape) -> Path:
    """A tiny model's GGUF file in ``folder``."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_gguf(path, Tiny(**shape))
    return path


class Parrot(NullRunner):
    """Says ``answer`` (ids) to everybody, then ``end`` for ever; each step takes ``delay`` seconds."""

    def __init__(self, delay: float = 0.0, **kwargs) -> None:
        self.answer: Sequence[int] = ()
        self.end = 0
        self.delay = delay
        self.broken: str | None = None
        super().__init__(script=self._say, **kwargs)

    def _say(self, state: RequestState, ids: Sequence[int]) -> int:
        said = len(ids) - state.n_prompt
        return self.answer[said] if said < len(self.answer) else self.end

    def execute(self, step: Step) -> StepOutput:
        began = time.perf_counter()
        time.sleep(self.delay)
        if self.broken is not None:
            raise RuntimeError(self.broken)
        output = super().execute(step)
        return msgspec.structs.replace(output, elapsed_s=time.perf_counter() - began)


def parrot_service(
    folder: Path, text: str = "hello", *, delay: float = 0.0, options: Options | None = None
) -> tuple[Service, Parrot]:
    """A service that answers ``text`` to every prompt, and the runner behind it."""
    parrot = Parrot(delay)
    service = build_service(str(tiny_file(folder)), options or Options(backend="null"), runner=parrot)
    parrot.answer = service.tokenizer.encode(text, add_bos=False)
    assert service.tokenizer.eos_id is not None
    parrot.end = service.tokenizer.eos_id
    return service, parrot
