"""The words of LLM inference in English and Italian: what they mean, and where spola shows them.

One table, ``terms.toml``, for the command, the web page's tooltips and the docs. Knows nothing of the engine.

Fields of a term: ``en`` and ``it`` its names, ``aka`` other names in either language, ``def_en`` and
``def_it`` its definitions, ``sentence`` an English sentence to say it with, ``where`` spola shows it,
``flags`` and ``metrics`` that are about it (metrics without prefix, labels and unit suffixes of Prometheus).
"""

from __future__ import annotations

import difflib
import tomllib
import unicodedata
from importlib.resources import files
from typing import Literal

import msgspec

__all__ = ["Glossary", "Lang", "Term", "bare_metric"]

Lang = Literal["en", "it"]


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One term. ``slug`` is its key in the table and its anchor in the docs."""

    slug: str
    en: str
    it: str
    def_en: str
    def_it: str
    sentence: str
    where: str
    aka: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def name(self, lang: Lang) -> str:
        return self.it if lang == "it" else self.en

    def definition(self, lang: Lang) -> str:
        return self.def_it if lang == "it" else self.def_en


class Glossary:
    """All terms in the table's order, from the basic to the special."""

    def __init__(self) -> None:
        table = tomllib.loads(files(__package__).joinpath("terms.toml").read_text("utf-8"))
        self.terms = tuple(msgspec.convert({"slug": slug} | row, Term) for slug, row in table.items())
        self._by_word: dict[str, Term] = {}
        # A name wins over another term's alias, so all names are entered first.
        for term in self.terms:
            for word in (term.slug, term.en, term.it):
                self._by_word.setdefault(_folded(word), term)
        for term in self.terms:
            for word in term.aka:
                self._by_word.setdefault(_folded(word), term)

    def find(self, word: str) -> Term | None:
        """The term with this name in either language, whatever its case, accents and hyphens."""
        return self._by_word.get(_folded(word))

    def near(self, word: str) -> list[Term]:
        """Terms that may be meant by ``word``: a name contains or resembles it. Best first, five at most."""
        folded = _folded(word)
        words = [w for w in self._by_word if folded and folded in w]
        words += difflib.get_close_matches(folded, self._by_word, n=5)
        return list(dict.fromkeys(self._by_word[w] for w in words))[:5]

    def of_flag(self, flag: str) -> list[Term]:
        """The terms that ``flag`` (an option such as ``--threads``, or a variable) is about."""
        return [term for term in self.terms if flag in term.flags]

    def of_metric(self, name: str) -> list[Term]:
        """The terms that the metric ``name`` is about, with or without Prometheus' affixes."""
        bare = bare_metric(name)
        return [term for term in self.terms if bare in term.metrics]


def bare_metric(name: str) -> str:
    """``name`` without the namespace (up to ``:``, or ``spola_``) and the suffixes that Prometheus adds."""
    bare = name.rpartition(":")[2].removeprefix("spola_")
    for suffix in ("_bucket", "_count", "_sum", "_created", "_total"):
        # A suffix may belong to the name itself, as in vLLM's iteration_tokens_total.
        if bare.endswith(suffix) and bare != "iteration_tokens_total":
            bare = bare.removesuffix(suffix)
    return bare


def _folded(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word.casefold())
    return "".join(c for c in plain if c.isalnum())
