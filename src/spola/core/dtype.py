"""The table of tensor types: names, ids (GGUF's, where it has the type), block sizes in elements and bytes.

The ids and sizes follow ggml's ``ggml_type`` enumeration as written in GGUF v2 and v3. Decoding lives
in ``backends.reference.blocks`` and in ``native/`` (kernels); this module only knows sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_GGUF_ID", "BY_NAME", "KNOWN_UNSUPPORTED", "DType", "nbytes"]


@dataclass(frozen=True, slots=True)
class DType:
    """One storage type of a tensor.

    ``block`` elements along the innermost dimension are stored in ``block_bytes`` bytes.
    """

    name: str
    gguf_id: int
    block: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return self.block_bytes * 8 / self.block


_SUPPORTED = (
    DType("F32", 0, 1, 4),
    DType("F16", 1, 1, 2),
    DType("Q4_0", 2, 32, 18),
    DType("Q4_1", 3, 32, 20),
    DType("Q5_0", 6, 32, 22),
    DType("Q5_1", 7, 32, 24),
    DType("Q8_0", 8, 32, 34),
    DType("Q2_K", 10, 256, 84),
    DType("Q3_K", 11, 256, 110),
    DType("Q4_K", 12, 256, 144),
    DType("Q5_K", 13, 256, 176),
    DType("Q6_K", 14, 256, 210),
    DType("IQ4_NL", 20, 32, 18),
    DType("IQ4_XS", 23, 256, 136),
    DType("BF16", 30, 1, 2),
    DType("MXFP4", 39, 32, 17),
)
# Not of GGUF; the id is the one that native/src/base/blocks.h gives it. A block is an f32 scale and 64 codes.
_OTHERS = (DType("F8_E4M3", 1000, 64, 68),)

BY_GGUF_ID: dict[int, DType] = {t.gguf_id: t for t in _SUPPORTED}
BY_NAME: dict[str, DType] = {t.name: t for t in (*_SUPPORTED, *_OTHERS)}

# Named so that a refusal can say what the type is, not only its number.
KNOWN_UNSUPPORTED: dict[int, str] = {
    4: "Q4_2 (removed from GGUF)",
    5: "Q4_3 (removed from GGUF)",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4 (removed from GGUF)",
    32: "Q4_0_4_8 (removed from GGUF)",
    33: "Q4_0_8_8 (removed from GGUF)",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4 (removed from GGUF)",
    37: "IQ4_NL_4_8 (removed from GGUF)",
    38: "IQ4_NL_8_8 (removed from GGUF)",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",
}


def nbytes(dtype: DType, elements: int) -> int:
    """Bytes of ``elements`` values of ``dtype``; ``elements`` must be whole blocks.

    Raises ValueError otherwise.
    """
    if elements % dtype.block:
        raise ValueError(f"{elements} elements are no whole number of {dtype.name} blocks of {dtype.block}")
    return elements // dtype.block * dtype.block_bytes
