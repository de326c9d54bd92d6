"""Start to first token and peak memory, cold and warm, next to llama.cpp: a 1B bf16 folder, a 7B Q4_0 file.

    python tools/experiments/load_times.py --llama BUILD/bin --files DIR -o load.json [--rounds 5]

Models are shapes with random weights that tools/make_gguf.py makes in --files; the folder holds the weights
of the BF16 file that llama.cpp is given. Both sides take turns. Seconds are of the whole process,
``spola run -n 1`` and ``llama-completion -n 1``; cold: the files are dropped from the page cache first. Of
the 7B shape, decode too. The plan is what ``spola plan`` gives for the run: the sum of its parts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from formats import config_of, write_folder
from peer_report import spread
from peer_run import PROMPT, Job, Place, Process, forget, theirs, touch

from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import TensorInfo

CONTEXT = "512"
MODELS = ("llama-1b-BF16", "llama2-7b-Q4_0")
DECODED = "llama2-7b-Q4_0"


def folder_of(source: Path) -> Path:
    """The BF16 file ``source`` as a Hugging Face folder beside it, made if it is not there."""
    folder = source.with_suffix("")
    if (folder / "config.json").exists():
        return folder
    write_folder(source, folder, as_stored, plain_config)
    return folder


def as_stored(out: dict[str, tuple[str, np.ndarray]], info: TensorInfo, values: np.ndarray) -> None:
    out[info.hf[0]] = ("F32" if values.itemsize == 4 else "BF16", values)


def plain_config(spec: DecoderSpec) -> dict[str, Any]:
    return {key: value for key, value in config_of(spec).items() if key != "quantization_config"}


def files_of(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors")) if model.is_dir() else [model]


def ours(model: Path, threads: int) -> list[str]:
    program = [
        sys.executable,
        "-m",
        "spola",
        "run",
        "-m",
        str(model),
        "--raw",
        "-n",
        "1",
        "--temperature",
        "0",
    ]
    return [*program, "--max-model-len", CONTEXT, "--threads", str(threads), "--json", PROMPT]


def checked(command: list[str]) -> Process:
    done = Process(command)
    if done.status:
        raise SystemExit(f"load_times: {command[0]} failed: {done.stderr[-300:]}")
    return done


def our_decode(model: Path, threads: int) -> float:
    command = [sys.executable, "-m", "spola", "bench", "offline", "-m", str(model), "-p", "16", "-n", "32"]
    done = checked([*command, "-b", "1", "--repeat", "1", "--threads", str(threads), "--json"])
    return float(json.loads(done.stdout)["decode"][0]["tok_s"])


def their_decode(llama: Path, model: Path, threads: int) -> float:
    command = [str(llama / "llama-bench"), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]
    return float(json.loads(checked([*command, "-p", "0", "-n", "32"]).stdout)[0]["avg_ts"])


def planned(model: Path) -> int:
    """Bytes of the whole process as planned."""
    command = [sys.executable, "-m", "spola", "plan", str(model), "--context", CONTEXT, "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return int(document["memory"]["peak"])


def take_turns(sides: dict[str, Callable[[], Any]], number: int) -> dict[str, Any]:
    """Every side once; who comes first changes from round to round."""
    order = list(sides) if number % 2 else list(reversed(sides))
    return {side: sides[side]() for side in order}


def measure(name: str, place: Place, rounds: int) -> dict[str, Any]:
    file = place.model(name)
    model = folder_of(file) if name.endswith("BF16") else file
    paths, threads = {"spola": model, "llama.cpp": file}, place.threads
    commands = {
        "spola": ours(model, threads),
        "llama.cpp": theirs(Job(name, "llama", "load", ()), place, file),
    }

    def one(side: str, kind: str) -> Process:
        for path in files_of(paths[side]):
            (forget if kind == "cold" else touch)(path)
        return checked(commands[side])

    samples: dict[str, list[float]] = {}
    for number in range(rounds):
        for kind in ("cold", "warm"):
            sides = {side: lambda side=side, kind=kind: one(side, kind) for side in paths}
            for side, done in take_turns(sides, number).items():
                samples.setdefault(f"{side} {kind} seconds", []).append(done.seconds)
                samples.setdefault(f"{side} {kind} peak_mb", []).append(done.peak_kb / 1024)
        if name == DECODED:
            speeds = {
                "spola": lambda: our_decode(model, threads),
                "llama.cpp": lambda: their_decode(place.llama, file, threads),
            }
            for side, speed in take_turns(speeds, number).items():
                samples.setdefault(f"{side} decode tok_s", []).append(speed)
        print(
            name, "round", number + 1, {key: round(rows[-1], 2) for key, rows in samples.items()}, flush=True
        )
    found: dict[str, Any] = {key: spread(rows) for key, rows in samples.items()}
    found["file_mb"] = sum(path.stat().st_size for path in files_of(model)) / 2**20
    found["planned_mb"] = planned(model) / 2**20
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--files", type=Path, required=True, help="where the models are or are made")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--smollm2", type=Path, help="whose tokenizer the models get; default: the embedded one"
    )
    given = parser.parse_args()
    place = Place(given.llama, given.files, given.output.parent, given.threads, given.smollm2)
    found = json.loads(given.output.read_text()) if given.output.exists() else {}
    for name in given.models.split(","):
        found[name] = measure(name, place, given.rounds)
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
