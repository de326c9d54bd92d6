"""The glossary: every technique that an option or a metric names is explained, in both languages."""

import json

import click
import pytest
from click.testing import CliRunner

from spola.cli import main as cli
from spola.core.errors import RequestError
from spola.core.flags import FLAGS
from spola.glossary import Glossary, bare_metric

GLOSSARY = Glossary()

REQUIRED = """inference, autoregressive, prefill, decode, KV cache, memory-bound, batching,
continuous batching, quantization, TTFT, TPOT, throughput, profiling"""

# Options that name no technique: input and output, addresses, the command's own manners.
PLAIN = frozenset(
    {"--help", "--version", "--json", "--verbose", "--host", "--port", "--output", "--served-model-name"}
    | {
        "--tensors",
        "--template",
        "--repeat",
        "--lang",
        "--quick",
        "--url",
        "--endpoint",
        "--extra",
        "--timeout",
        "--measure",
        "--memory",
        "--html",
        "--chrome-trace",
    }
    | {"--svg", "--once", "--number"}
    | {"--strict", "--cors-origin", "--drain-timeout", "--request-timeout", "--log-format"}
    | {"--otlp-traces-endpoint", "--event-loop"}
)


def options() -> dict[str, str]:
    """Every long option of every command -> the command."""
    found: dict[str, str] = {}

    def visit(command: click.Command, path: str) -> None:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                found.update({name: path for name in parameter.opts if name.startswith("--")})
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                visit(inner, f"{path} {name}")

    visit(cli, "spola")
    return found


@pytest.mark.parametrize("word", [word.strip() for word in REQUIRED.split(",")])
def test_required_terms_are_there(word):
    term = GLOSSARY.find(word)
    assert term is not None
    assert term.en.casefold() == word.casefold()


def test_every_option_that_names_a_technique_is_explained():
    missing = {name: where for name, where in options().items() if name not in PLAIN}
    missing = {name: where for name, where in missing.items() if not GLOSSARY.of_flag(name)}
    assert missing == {}, "explain these in glossary/terms.toml (`flags`), or call them PLAIN here"


def test_every_variable_is_explained():
    assert [name for name in FLAGS if not GLOSSARY.of_flag(name)] == []


def test_names_are_unambiguous():
    owners: dict[str, str] = {}
    for term in GLOSSARY.terms:
        for name in {term.en.casefold(), term.it.casefold()}:
            assert owners.setdefault(name, term.slug) == term.slug, name


@pytest.mark.parametrize("term", GLOSSARY.terms, ids=lambda term: term.slug)
def test_texts_are_whole(term):
    for text in (term.def_en, term.def_it, term.sentence):
        assert text[0].isupper() or text.startswith("e ")
        assert text.endswith(".")
    assert len(term.sentence.split()) >= 8
    assert GLOSSARY.find(term.en) is term
    assert GLOSSARY.find(term.it) is term


@pytest.mark.parametrize(
    ("word", "slug"),
    [
        ("Decodifica", "decode"),
        ("PERPLESSITA", "perplexity"),
        ("k v-cache", "kv-cache"),
        ("APC", "prefix-cache"),
    ],
)
def test_found_by_either_language(word, slug):
    term = GLOSSARY.find(word)
    assert term is not None
    assert term.slug == slug


def test_metric_names_lose_their_affixes():
    assert bare_metric("vllm:time_to_first_token_seconds_bucket") == "time_to_first_token_seconds"
    assert bare_metric("spola_prompt_tokens_total") == "prompt_tokens"
    assert [term.slug for term in GLOSSARY.of_metric("spola:num_preemptions_total")] == ["preemption"]


def test_command_shows_one_language_with_the_other_name():
    result = CliRunner().invoke(cli, ["glossary", "cache kv", "--lang", "it"])
    assert result.exit_code == 0
    assert "cache KV (en: KV cache)" in result.stdout
    assert "Le chiavi e i valori" in result.stdout


def test_command_lists_all_as_json():
    result = CliRunner().invoke(cli, ["glossary", "--json"])
    assert [term["slug"] for term in json.loads(result.stdout)["terms"]] == [t.slug for t in GLOSSARY.terms]


def test_unknown_word_names_its_neighbours():
    with pytest.raises(RequestError, match="did you mean 'prefill'"):
        cli(["glossary", "prefil"], standalone_mode=False)
