"""The NumPy backend: the living definition of what a model computes. Slow on purpose, and obvious."""
