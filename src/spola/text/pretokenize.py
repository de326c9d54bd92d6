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
# Letters with case, as of the Unicode version that the tokenizer was made with.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK_HANGUL,
    r"\p{N}+",
)
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
    ("deepseek-llm",): Pre(_DEEPSEEK_LLM),
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
