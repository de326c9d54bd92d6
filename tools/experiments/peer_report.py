"""What the samples of peer.py say: medians, ratios, whether aims are met, as JSON and Markdown."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_run import BATCHES, Job

# Of spola's figure to llama.cpp's best: decode (empty context and depth 2048), prefill (512 and 2048).
AIMS = {
    "smollm2": (2.0, 4.0),
    "llama-1b-Q4_0": (1.45, 2.3),
    "llama-1b-Q4_K_M": (1.4, 2.0),
    "llama-1b-Q8_0": (1.3, 1.7),
    "llama-1b-F16": (None, 0.95),
}
BATCH_AIMS = {2: 1.6, 4: 2.0, 8: 2.0, 16: 2.0, 32: 2.0}
ROOFLINE_AIMS = {"smollm2": 0.75}  # others 0.85
# figure: spola's job and value, llama.cpp's job and value
PAIRS = {
    "decode": ("short", "decode1", "tg64", "decode1"),
    "decode at 2048": ("deep", "decode1", "tg32@2048", "decode1"),
    "prefill 512": ("short", "prefill", "pp512", "prefill"),
    "prefill 2048": ("deep", "prefill", "pp2048", "prefill"),
}


@dataclass
class Samples:
    """All samples so far; those that others disturbed stay in ``all`` and count nowhere but in ``best``."""

    all: list[dict[str, Any]]
    most_others: float

    @classmethod
    def read(cls, folder: Path, most_others: float) -> Samples:
        path = folder / "samples.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return cls([json.loads(line) for line in lines], most_others)

    def counts(self, sample: dict[str, Any]) -> bool:
        return "values" in sample and sample["others"] <= self.most_others

    def of(self, job: Job) -> list[dict[str, Any]]:
        return [s for s in self.all if as_job(s) == job]

    def find(self, job: Job) -> dict[str, Any] | None:
        return next((s for s in self.of(job) if self.counts(s)), None)

    def tries(self, job: Job) -> int:
        return len(self.of(job))

    def disturbed(self, model: str) -> int:
        return sum(not self.counts(s) for s in self.all if s["job"]["model"] == model)

    def scanned(self, model: str, name: str) -> dict[tuple[Any, ...], float]:
        """Speed by setting in the scan, summed over what the job measures, of the least disturbed sample."""
        found: dict[tuple[Any, ...], tuple[float, float]] = {}
        for s in self.all:
            job = as_job(s)
            if (job.model, job.name, job.round) == (model, name, 0) and "values" in s:
                old = found.get(job.setting)
                if old is None or s["others"] < old[0]:
                    found[job.setting] = (s["others"], sum(s["values"].values()))
        return {setting: speed for setting, (_, speed) in found.items()}

    def best(self, model: str, name: str) -> tuple[Any, ...]:
        """llama.cpp's fastest setting in the scan; all on where it failed."""
        speeds = self.scanned(model, name)
        return max(speeds, key=speeds.__getitem__) if speeds else (1, 1, "mmap")

    def values(self, model: str, side: str, name: str, value: str) -> list[float]:
        """The figure of every round that counts."""
        found: dict[int, float] = {}
        for s in self.all:
            job = as_job(s)
            if (job.model, job.side, job.name) == (model, side, name) and job.round and self.counts(s):
                found.setdefault(job.round, s["values"][value])
        return list(found.values())


def as_job(sample: dict[str, Any]) -> Job:
    job = sample["job"]
    return Job(job["model"], job["side"], job["name"], tuple(job["setting"]), job["round"])


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def compare(ours: list[float], theirs: list[float], aim: float | None, **more: Any) -> dict[str, Any]:
    """Both sides and their ratio; ``met`` is None where something is missing or nothing was aimed at."""
    a, b = spread(ours), spread(theirs)
    ratio = None if a is None or b is None else a["median"] / b["median"]
    met = None if ratio is None or aim is None else ratio >= aim
    return {"spola": a, "llama.cpp": b, "ratio": ratio, "aim": aim, "met": met, **more}


def model_figures(samples: Samples, model: str) -> dict[str, Any]:
    decode_aim, prefill_aim = AIMS[model]
    figures: dict[str, Any] = {}
    for figure, (our_job, our_value, their_job, their_value) in PAIRS.items():
        ours = samples.values(model, "spola", our_job, our_value)
        theirs = samples.values(model, "llama", their_job, their_value)
        roofline = spread(samples.values(model, "spola", our_job, f"{our_value}_roofline"))
        aim = decode_aim if figure.startswith("decode") else prefill_aim
        setting = samples.best(model, their_job)
        figures[figure] = compare(ours, theirs, aim, roofline=roofline, setting=setting)
    for size in BATCHES:
        ours = samples.values(model, "spola", "batch", f"decode{size}")
        theirs = samples.values(model, "llama", "batch", f"decode{size}")
        if ours or theirs:
            setting = samples.best(model, "batch")
            figures[f"batch {size}"] = compare(ours, theirs, BATCH_AIMS.get(size), setting=setting)
    return figures


def loads(samples: Samples, model: str) -> dict[str, Any]:
    """Process start to the end of an answer of one token, and the peak of its resident memory."""
    found: dict[str, Any] = {}
    for name in ("load", "load-cold"):
        for side in ("spola", "llama"):
            found[f"{name} {side}"] = {
                value: spread(samples.values(model, side, name, value)) for value in ("seconds", "peak_mb")
            }
    return found


def taken(samples: Samples) -> dict[str, Any]:
    """Two threads with one core taken, over one thread by itself: the aim is 0.8."""
    found = {}
    for side in ("spola", "llama"):
        for value in ("decode1", "prefill"):
            busy = samples.values("smollm2", side, "taken", value)
            alone = samples.values("smollm2", side, "alone", value)
            found[f"{side} {value}"] = compare(busy, alone, 0.8 if side == "spola" else None)
    return found


def report(samples: Samples, models: Iterable[str], out: Path) -> int:
    """Write peer.json and peer.md."""
    document: dict[str, Any] = {"machine": machine(), "samples": len(samples.all), "models": {}}
    lines = [
        f"{document['machine']}, medians of the rounds (least to most), llama.cpp at its best setting.",
        "",
    ]
    for model in models:
        figures, load = model_figures(samples, model), loads(samples, model)
        scan = {
            name: scanned(samples, model, name) for name in (*(pair[2] for pair in PAIRS.values()), "batch")
        }
        document["models"][model] = {"figures": figures, "load": load, "scan": scan}
        lines += [f"## {model}", "", *figure_table(model, figures), "", *load_table(load), ""]
        lines += scan_table(scan)
    document["one core taken"] = taken(samples)
    lines += ["## One core taken by another process", "", *taken_table(document["one core taken"])]
    (out / "peer.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(lines).rstrip() + "\n"
    (out / "peer.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def machine() -> str:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {platform.system()}"


def scanned(samples: Samples, model: str, name: str) -> dict[str, float]:
    return {"/".join(map(str, setting)): speed for setting, speed in samples.scanned(model, name).items()}


def show(values: dict[str, Any] | None, form: str = ".1f") -> str:
    if values is None:
        return "-"
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def figure_table(model: str, figures: dict[str, Any]) -> list[str]:
    lines = [
        "| tok/s | spola | llama.cpp | repack/fa/load | ratio | aim | of the roofline |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in figures.items():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        aim = "" if row["aim"] is None else f"{row['aim']:g}{'' if row['met'] is not False else ' missed'}"
        bound = ""
        if row.get("roofline"):
            bound = f"{row['roofline']['median']:.2f}"
            if name == "decode":
                least = ROOFLINE_AIMS.get(model, 0.85)
                bound += f" of {least}{' missed' if row['roofline']['median'] < least else ''}"
        setting = "/".join(map(str, row["setting"]))
        both = f"{show(row['spola'])} | {show(row['llama.cpp'])}"
        lines.append(f"| {name} | {both} | {setting} | {ratio} | {aim} | {bound} |")
    return lines


def load_table(load: dict[str, Any]) -> list[str]:
    lines = ["| start to first token | seconds | peak resident MB |", "|---|---|---|"]
    return lines + [
        f"| {name} | {show(v['seconds'], '.2f')} | {show(v['peak_mb'], '.0f')} |" for name, v in load.items()
    ]


def scan_table(scan: dict[str, dict[str, float]]) -> list[str]:
    """The settings of llama.cpp, once each; of batches the sum over all sizes."""
    lines = []
    for name, speeds in scan.items():
        shown = ", ".join(f"{setting} {speed:.1f}" for setting, speed in speeds.items())
        if shown:
            lines.append(f"- scan {name}: {shown}")
    return [*lines, ""]


def taken_table(rows: dict[str, Any]) -> list[str]:
    lines = ["| | two threads, one core taken | one thread alone | ratio | aim |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        aim = "" if row["aim"] is None else f"{row['aim']:g}{'' if row['met'] is not False else ' missed'}"
        lines.append(f"| {name} | {show(row['spola'])} | {show(row['llama.cpp'])} | {ratio} | {aim} |")
    return lines
