"""Any sequence of adds, aborts, steps in flight, drafts and failures keeps every promise of the engine."""

import os

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support.scheduler_machine import GROUPS, KINDS, SEEN, WINDOWS, SchedulerMachine, drive

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def test_every_promise_holds_over_random_histories():
    quick = {} if SOAK else {"max_examples": 50}
    run_state_machine_as_test(SchedulerMachine, settings=settings(stateful_step_count=30, **quick))


EVERYTHING = (
    *GROUPS,
    *KINDS,
    *("stop", "length", "abort", "error", "sample", "score", "logits", "embed_last", "embed_mean"),
    *("refused", "preempted", "preempted and right", "mixed", "drafts", "flying", "abort in flight"),
    *("window freed", "step failed", "copied"),
    *("mode static", "mode dynamic", "mode contiguous", "batch begun", "slept", "deadline"),
    *(
        "key held back",
        "halves",
        "passed",
        "aged",
        "gave way to a class",
        "choice shares",
        "abort of choices",
    ),
    *("hit", "hit again", "hit inside a block", "all but one", "generated found", "hit compared"),
)


def never() -> list[str]:
    """What did not happen often enough for a test to mean something."""
    return [what for what in EVERYTHING if SEEN[what] < 3]


# 1064: blocks found for a new request were taken by a running one before it began.
# 6195: a choice copied from the first one, which came back in the same step and was itself to get a copy.
ONCE_WRONG = (1064, 6195)


def test_every_promise_holds_under_pressure():
    SEEN.clear()
    for seed in (*range(2_500 if SOAK else 33), *ONCE_WRONG):
        try:
            drive(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert not never()


def test_every_promise_holds_where_windows_share_a_step():
    """Narrow and wide windows, several groups; steps of a few rows and of many, several of them in flight."""
    SEEN.clear()
    kinds = sorted(WINDOWS)
    for seed in range(600 if SOAK else 18):
        rows, chunk = ((8, None), (24, None), (60, None), (60, 20))[seed % 4]
        more = {"groups": kinds[seed % len(kinds)], "rows": rows, "chunk": chunk, "size": 2 + seed % 3}
        more |= {"kind": ("any", "any", "unmixed", "narrow", "chunks")[seed % 5]}
        more |= {"blocks": 40, "window_blocks": (12, 20, 40)[seed // 3 % 3]}
        try:
            drive(5_000 + seed, **more)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    wanted = ("lent to several", "held to what is not lent", "window freed", "flying", "preempted", "drafts")
    assert all(SEEN[what] >= 3 for what in wanted), {what: SEEN[what] for what in wanted}
