"""Backends: each executes Steps in its own way behind the Runner contract of ``core.runner``.

``reference`` is the living definition in NumPy, ``null`` computes nothing in virtual time, ``native`` is the
fast one in C++. They do not know each other; ``registry`` finds them, and others' packages, by name, and
``shapes`` holds a Step against Capabilities. How to add one: docs/adding-a-backend.md.
"""
