"""Model files: GGUF and safetensors, read and written as raw bytes.

Nothing here decodes a block, knows an architecture or imports NumPy.
"""
