"""The page as files: complete, and closed to others. Browsers are elsewhere."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

from spola.glossary import Glossary
from support.running import Running
from support.waiting import PATIENCE_S


def fetch(running: Running, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(running.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, dict(response.headers.items()), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers.items()), error.read()


def test_everything_the_page_names_is_there_and_comes_from_here(running: Running) -> None:
    status, headers, body = fetch(running, "/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    named = re.findall(r'(?:src|href)="([^"]+)"', body.decode())
    assert len(named) == 3
    for address in named:
        assert address.startswith("./page/")
        status, headers, body = fetch(running, address[1:])
        assert status == 200
        assert headers["x-content-type-options"] == "nosniff"
        assert body
    assert b"<script>" not in fetch(running, "/")[2]


def test_a_page_that_is_known_is_not_sent_again(running: Running) -> None:
    tag = fetch(running, "/")[1]["etag"]
    status, _, body = fetch(running, "/", **{"If-None-Match": tag})
    assert (status, body) == (304, b"")


def test_the_glossary_for_the_tooltips(running: Running) -> None:
    terms = json.loads(fetch(running, "/page/glossary.json")[2])["terms"]
    assert [term["slug"] for term in terms] == [term.slug for term in Glossary().terms]


@pytest.mark.parametrize(
    "path", ["/page/", "/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/index.html"]
)
def test_nothing_else_is_served(running: Running, path: str) -> None:
    assert fetch(running, path)[0] == 404
