"""The engine: which tokens to compute next, where their K and V live, and when a request ends.

Token ids only: no text, logits, clock, threads or I/O. ``Scheduler.schedule(now)`` gives a Step,
``Scheduler.commit(step, output)`` takes its outcome, ``Engine`` puts a Runner in between.
"""
