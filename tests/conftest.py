"""What every suite needs: interrupts that arrive, however the tests were started."""

import signal

# A shell's background job, as some CI systems start theirs, ignores interrupts, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
