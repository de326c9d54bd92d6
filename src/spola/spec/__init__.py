"""The model as data: what it is made of, its tensors, what it costs. No arithmetic, no NumPy."""
