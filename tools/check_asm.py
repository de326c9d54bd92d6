"""What g++ 12 made of the SIMD sources: no spills in the inner loops of hot kernels, no code for everybody.

Compilers of other versions are not judged: exit status 0 and a line saying so. Needs objdump and nm. Checks
the objects of a finished CMake build:

- no vector register is stored to the stack inside an innermost loop of a linear kernel (attention keeps its
  scores there on purpose);
- an object compiled for an instruction set defines no weak symbol: the linker could take it for all callers;
- the other objects of the library have no instruction on ymm or zmm registers, but for functions that the
  compiler made in several versions.

    python tools/check_asm.py build/dev
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMPILER = re.compile(rb"GCC: \([^)]*\) 12\.")
SIMD = re.compile(r"_(avx2|avx512vnni)(_\w+)?\.cc\.o$")
HOT = re.compile(r"linear_avx")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
JUMP = re.compile(r"^([0-9a-f]+) <")
STORE = re.compile(r"^%[xyz]mm\d+,-?(0x[0-9a-f]+)?\(%r[sb]p(,[^)]*)?\)$")

Instruction = tuple[int, str, str]  # address, mnemonic, operands


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction]]]:
    name, code = "", list[Instruction]()
    for line in disassembly.splitlines():
        if found := FUNCTION.match(line):
            if code:
                yield name, code
            name, code = found[1], []
        elif found := LINE.match(line):
            code.append((int(found[1], 16), found[2], found[3]))
    if code:
        yield name, code


def inner_loops(code: list[Instruction]) -> list[tuple[int, int]]:
    """First and last address of each loop that holds no other: a jump back, and where it goes."""
    loops = []
    for address, name, operands in code:
        if name.startswith("j") and (found := JUMP.match(operands)):
            target = int(found[1], 16)
            if target <= address:
                loops.append((target, address))
    return [
        (first, last)
        for first, last in loops
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops)
    ]


def spills(code: list[Instruction]) -> int:
    """Stores of vector registers to the stack within innermost loops."""
    loops = inner_loops(code)
    stores = [at for at, name, ops in code if name.startswith("vmov") and STORE.match(ops)]
    return sum(any(first <= at <= last for first, last in loops) for at in stores)


def is_judged(item: Path) -> bool:
    return bool(COMPILER.search(item.read_bytes()))


def faults(item: Path) -> Iterator[str]:
    """Whatever is wrong with one object."""
    name = item.name
    disassembly = run("objdump", "-d", "--no-show-raw-insn", str(item))
    if not SIMD.search(name):
        wide = [
            function
            for function, code in functions(disassembly)
            if any("%ymm" in operands or "%zmm" in operands for *_, operands in code)
        ]
        wide = [function for function in wide if not function.endswith(".avx2")]  # chosen at run time
        yield from (f"{name}: {function} uses wide registers" for function in wide)
        return
    weak = [
        line for line in run("nm", "-C", str(item)).splitlines() if line[17:18] in "WVu" and line[:1] != " "
    ]
    yield from (f"{name}: weak symbol {line[19:]}" for line in weak)
    if HOT.search(name):
        for function, code in functions(disassembly):
            if count := spills(code):
                yield f"{name}: {function} stores {count} vector registers to the stack in an inner loop"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    objects = sorted(parser.parse_args().build.rglob("spola_core.dir/**/*.cc.o"))
    if not objects:
        print("check_asm: there are no objects; build first", file=sys.stderr)
        return 2
    if not (any(SIMD.search(item.name) for item in objects) and is_judged(objects[0])):
        print("check_asm: not built by g++ 12 for x86-64, not judged")
        return 0
    if not (shutil.which("objdump") and shutil.which("nm")):
        print("check_asm: there is no objdump here, not judged")
        return 0
    found = [fault for item in objects for fault in faults(item)]
    print("\n".join(found) or f"check_asm: {len(objects)} objects, no fault")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
