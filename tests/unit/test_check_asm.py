"""The look at machine code: which stores count as spills, and which loops as inner ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from check_asm import functions, inner_loops, spills

LISTING = """
0000000000000000 <kernel>:
   0:\tvmovaps %ymm1,-0x20(%rsp)
   6:\tvpaddd %ymm1,%ymm2,%ymm3
   a:\tvmovdqa %ymm3,0x40(%rsp,%rax,4)
   c:\tvmovaps 0x20(%rsp),%ymm4
   e:\tvmovups %ymm4,(%rdi)
  10:\tjne    a <kernel+0xa>
  12:\tvmovaps %ymm5,(%rsp)
  18:\tjb     6 <kernel+0x6>
  1a:\tjmp    20 <kernel+0x20>
  20:\tret

0000000000000030 <other>:
  30:\tret
"""


def test_stores_to_the_stack_in_the_innermost_loop_count() -> None:
    (name, code), (other, rest) = functions(LISTING)
    assert (name, other) == ("kernel", "other")
    assert inner_loops(code) == [(0xA, 0x10)]
    assert spills(code) == 1
    assert spills(rest) == 0


@pytest.mark.parametrize("store", ["vmovaps %zmm31,0x80(%rbp)", "vmovdqu8 %xmm0,(%rsp)"])
def test_every_width_counts(store: str) -> None:
    ((_, code),) = functions(f"0000000000000000 <k>:\n   0:\t{store}\n   8:\tjmp    0 <k>\n")
    assert spills(code) == 1
