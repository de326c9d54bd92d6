"""/openapi.json: true to the tables that parse requests, and complete."""

from __future__ import annotations

import jsonschema
import msgspec
import pytest

from spola.server.openapi import ROUTES
from support.running import Running
from support.serving import ask


def test_every_route_is_in_the_document(running: Running) -> None:
    told = ask(running, "/openapi.json").body
    assert told["openapi"].startswith("3.1")
    assert set(told["paths"]) == set(ROUTES)
    for path, about in ROUTES.items():
        (method,) = told["paths"][path]
        assert method == ("get" if about.body is None else "post")
        if path == "/":
            continue  # the page is at GET
        # The other method is not there.
        other = ask(running, path.replace("{name}", "tiny"), b"{}" if method == "get" else None)
        assert other.status == 405


@pytest.mark.parametrize("path", [path for path, about in ROUTES.items() if about.body is not None])
def test_fields_are_those_that_are_parsed(running: Running, path: str) -> None:
    told = ask(running, "/openapi.json").body
    body = ROUTES[path].body
    assert body is not None
    schema = told["components"]["schemas"][body.__name__]
    assert set(schema["properties"]) == set(body.__struct_fields__)
    required = [field.name for field in msgspec.structs.fields(body) if field.required]
    assert schema.get("required", []) == required
    refused = ask(running, path, b"{}")
    assert refused.status == 400
    answers = told["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]
    name = answers["schema"]["$ref"].rpartition("/")[2]
    if not path.startswith("/v1/messages"):  # Anthropic's has no param
        jsonschema.validate(refused.body, told["components"]["schemas"][name])
    for name in schema["properties"]:
        assert schema["properties"][name].get("description"), f"{path}: {name} has no description"
