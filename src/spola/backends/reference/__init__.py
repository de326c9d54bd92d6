"""The NumPy backend: the living definition of what a model computes. Slow on purpose, and obvious."""

from spola.backends.reference.runner import QuantizedReferenceRunner, ReferenceRunner

__all__ = ["QuantizedReferenceRunner", "ReferenceRunner"]
