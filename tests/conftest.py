"""What every suite needs: interrupts that arrive, however tests were started; leaks told where they are."""

import gc
import signal
from collections.abc import Iterator

import pytest

# A shell's background job, as some CI systems start theirs, ignores interrupts, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A socket or file that a module's tests did not close fails that module, not a later one by chance."""
    yield
    gc.collect()
