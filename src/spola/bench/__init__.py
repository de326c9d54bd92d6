"""Benchmarks of a loaded model and of the kernels, each figure beside this machine's own limit."""
