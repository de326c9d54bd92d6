"""What every suite needs: interrupts that arrive and an environment that is known, however tests were
started; leaks told where they are.
"""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

# A shell's background job, as some CI systems start theirs, ignores interrupts, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Helpers assert too: their failures show values as those of tests do.
pytest.register_assert_rewrite("support")

# What tests may be told from outside: the instruction set to run on, and the server for tests/clients. Every
# other setting of spola, and of the places where models lie, is forgotten here, before a test module is
# imported; what tests start inherits this.
TOLD = ("SPOLA_ISA", "SPOLA_URL")
FORGOTTEN = ("SPOLA_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "OLLAMA_")
for name in [name for name in os.environ if name.startswith(FORGOTTEN) and name not in TOLD]:
    del os.environ[name]
os.environ["SPOLA_CHECK"] = "1"


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A socket or file that a module's tests did not close fails that module, not a later one by chance."""
    yield
    gc.collect()
