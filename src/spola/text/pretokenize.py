r"""How byte-level BPE models cut text into words before merging, by ``tokenizer.ggml.pre``.

One row per name that GGUF files use: the regular expressions, applied one after another (each cuts the
pieces left by the one before, matches and gaps alike), whether a word that is itself a token skips the
merges, whether the model's own tokenizer normalizes to NFC first, and whether it adds BOS when the file
does not say. Expressions are those of the models' published tokenizers, written for Oniguruma with
explicit case classes; names and defaults are GGUF's. Nothing is tokenized here.
"""

from __future__ import annotations

from dataclasses import dataclass

from spola.core.errors import ModelError

__all__ = ["PRE", "Pre", "find_pre"]


@dataclass(frozen=True, slots=True)
class Pre:
    """One pre-tokenizer. ``splits`` are Oniguruma expressions, in order of application."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


# Parts that many expressions share.
_APOSTROPHE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_APOSTROPHE}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _cased(suffix: str, digits: str) -> str:
    """Words cut where lower case turns to upper, as in the o200k family."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}[{_UPPER}]*[{_LOWER}]+{suffix}|{lead}[{_UPPER}]+[{_LOWER}]*{suffix}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_TEKKEN = _cased("", r"\p{N}")
_GPT4O = _cased(rf"{_APOSTROPHE}?", r"\p{N}{1,3}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CJK_HANGUL = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")
_FALCON_MARKS = r"[\p{P}\$\+<=>\^~\|`]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SEED_CODER = (
    rf"{_APOSTROPHE}|{_WORD}|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

_ROWS: dict[tuple[str, ...], Pre] = {
    ("default",): Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
    ): Pre((_LLAMA3,), ignore_merges=True, add_bos=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"): Pre((_LLAMA3,)),
    ("deepseek-coder",): Pre(_DEEPSEEK_CODER),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm"): Pre(_DEEPSEEK3),
    ("falcon",): Pre((_FALCON_MARKS, _GPT2, "[0-9][0-9][0-9]")),
    (
        "starcoder",
        "refact",
        "smollm",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
    ): Pre((r"\p{N}", _GPT2)),
    ("command-r",): Pre((r"\p{N}", _GPT2), nfc=True),
    (
        "gpt-2",
        "phi-2",
        "gigachat",
        "a.x-4.0",
        "mellum",
        "jais",
        "trillion",
        "granite-docling",
        "exaone4",
    ): Pre((_GPT2,)),
    ("mpt", "olmo"): Pre((_GPT2,), nfc=True),
    ("qwen2",): Pre((_QWEN2,), nfc=True),
    (
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
    ): Pre((_QWEN2,)),
    ("qwen35",): Pre((_QWEN35,), nfc=True),
    ("poro-chat", "bloom", "gpt3-finnish"): Pre((_BLOOM,)),
    ("viking",): Pre((_BLOOM, r"\p{N}")),
    ("tekken",): Pre((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): Pre((_GPT4O,)),
    ("bailingmoe", "bailingmoe2", "llada-moe"): Pre((_BAILING,)),
    ("seed-coder",): Pre((_SEED_CODER,)),
}

PRE: dict[str, Pre] = {name: row for names, row in _ROWS.items() for name in names}


def find_pre(name: str) -> Pre:
    """The row of ``name``. Raises ModelError listing the known names for any other."""
    row = PRE.get(name)
    if row is None:
        known = ", ".join(sorted(PRE))
        raise ModelError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not supported; known are: {known}"
        )
    return row
