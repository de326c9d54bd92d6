"""Every metric that names a technique or a quantity of inference is explained in the glossary."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from spola.glossary import Glossary
from support.running import Running

# About the server as a program, not about inference.
PLAIN = {"build_info", "http_requests", "model_loaded", "model_loads"}


def test_every_metric_is_explained(running: Running) -> None:
    with urllib.request.urlopen(running.url + "/metrics", timeout=20) as response:
        text = response.read().decode()
    names = {family.name.rpartition(":")[2] for family in text_string_to_metric_families(text)}
    assert len(names) > 25
    glossary = Glossary()
    missing = {name for name in names - PLAIN if not glossary.of_metric(name)}
    assert missing == set(), "name these in glossary/terms.toml (`metrics`), or call them PLAIN here"
