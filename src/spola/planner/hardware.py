"""Machines to plan for: this one, measured, or a well-known one, by the figures that its sources publish.

Peaks are dense (without sparsity), in multiply-adds doubled to operations as the trade counts them. A figure
whose source was not read is not here: without a peak there is no prefill bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from spola.core.errors import ConfigError

__all__ = ["HARDWARE", "Hardware", "find_hardware"]

_GB = 10**9
_KLOCKWOOD = "https://glennklockwood.com/garden/processors/A100"
_LLMBOOK = "http://llmbook.apartsin.com/appendices/appendix-g-hardware-compute/section-g.1.html"
_GENOA = "https://www.tomshardware.com/news/amd-confirms-12-ddr5-memory-channels-on-genoa"
_M4 = "https://gamebastion.com/n/apple-s-m4-max-is-the-first-non-ultra/474547"


@dataclass(frozen=True, slots=True)
class Hardware:
    """``memory`` in bytes (None: as much as is put in), ``read`` in bytes per second, peaks in operations per
    second: of 16-bit floats, and of 8-bit integers.
    """

    name: str
    kind: str
    memory: int | None
    read: float
    flops16: float | None
    ops8: float | None
    source: str

    def peak(self, bits: float) -> float | None:
        """Operations per second for weights of ``bits`` bits: in 8-bit integers if published, else 16-bit."""
        return self.ops8 if bits <= 9 and self.ops8 is not None else self.flops16


def _row(
    name: str,
    kind: str,
    gb: float | None,
    gb_s: float,
    tflops: float | None,
    tops: float | None,
    source: str,
) -> Hardware:
    memory = None if gb is None else int(gb * _GB)
    flops16 = None if tflops is None else tflops * 1e12
    return Hardware(name, kind, memory, gb_s * _GB, flops16, None if tops is None else tops * 1e12, source)


HARDWARE: tuple[Hardware, ...] = (
    _row("a100-40gb", "data-centre GPU", 40, 1555, 312, 624, _KLOCKWOOD),
    _row("a100-80gb", "data-centre GPU", 80, 2039, 312, 624, _KLOCKWOOD),
    _row("h100-sxm", "data-centre GPU", 80, 3350, 990, None, _LLMBOOK),
    _row("h200-sxm", "data-centre GPU", 141, 4800, 990, None, _LLMBOOK),
    _row("b200", "data-centre GPU", 192, 8000, 2250, None, _LLMBOOK),
    _row("mi300x", "data-centre GPU", 192, 5300, 1307, None, _LLMBOOK),
    _row("l40s", "data-centre GPU", 48, 864, 362, 733, _LLMBOOK),
    _row(
        "l4",
        "data-centre GPU",
        24,
        300.1,
        None,
        None,
        "https://fpsbench.com/compare/gpu/nvidia-l4-vs-nvidia-tesla-m40",
    ),
    _row(
        "t4",
        "data-centre GPU",
        16,
        320,
        65.13,
        None,
        "https://sysrqmts.com/es/gpus/compare/nvidia-tesla-t4-vs-nvidia-tesla-v100-sxm3-32-gb",
    ),
    _row(
        "rtx-4090",
        "consumer GPU",
        24,
        1008,
        165.15,
        660.6,
        "https://waredb.com/processor/nvidia-geforce-rtx-4090",
    ),
    _row(
        "rtx-5090",
        "consumer GPU",
        32,
        1792,
        None,
        None,
        "https://www.spheron.network/blog/nvidia-rtx-5090-specs/",
    ),
    _row("tpu-v5e", "TPU", 16, 819, 197, 393, "https://cloud.google.com/tpu/docs/v5e"),
    _row("tpu-v6e", "TPU", 32, 1638, 918, 1836, "https://docs.cloud.google.com/tpu/docs/v6e.md.txt"),
    _row("m4-pro", "Apple", 64, 273, None, None, _M4),
    _row("m4-max", "Apple", 128, 546, None, None, _M4),
    _row("m2-ultra", "Apple", 192, 800, None, None, _M4),
    _row("epyc-milan", "server CPU socket", None, 204.8, None, None, _GENOA),
    _row("epyc-genoa", "server CPU socket", None, 460.8, None, None, _GENOA),
)

# Of IBM Spyre the published pages that were read give 128 GB and more than 300 TOPS, but no memory bandwidth
# (https://torch-spyre.readthedocs.io/en/latest/architecture/spyre_accelerator.html): no bound can be stated.


def find_hardware(name: str) -> Hardware:
    """The row called ``name``. Raises ConfigError naming all of them."""
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    for row in HARDWARE:
        if row.name == wanted:
            return row
    if wanted in ("spyre", "ibm-spyre"):
        raise ConfigError("--hardware spyre: its memory bandwidth is not published where we could read it")
    raise ConfigError(f"--hardware {name!r}: use auto or one of {', '.join(row.name for row in HARDWARE)}")
