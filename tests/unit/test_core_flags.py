"""Environment flags: parsed strictly, listed once."""

import pytest

from spola.core import flags
from spola.core.errors import ConfigError


def test_defaults_hold_when_nothing_is_set():
    assert flags.read("SPOLA_CHECK", {}) is False
    assert flags.read("SPOLA_ISA", {}) == ""


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("", False)]
)
def test_booleans(text, value):
    assert flags.read("SPOLA_CHECK", {"SPOLA_CHECK": text}) is value


@pytest.mark.parametrize(("name", "text"), [("SPOLA_CHECK", "maybe"), ("SPOLA_ISA", "sse9")])
def test_a_bad_value_names_the_flag(name, text):
    with pytest.raises(ConfigError, match=name):
        flags.read(name, {name: text})


def test_an_undeclared_flag_is_a_programming_error():
    with pytest.raises(KeyError):
        flags.read("SPOLA_NOPE", {})


def test_typing_errors_are_reported():
    assert flags.unknown({"SPOLA_CHEK": "1", "SPOLA_ISA": "", "PATH": ""}) == ["SPOLA_CHEK"]
