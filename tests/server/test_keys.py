"""Who may call: API keys, their limits, web pages of other origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.server.keys import read_keys
from spola.server.options import ServerOptions
from spola.server.quota import Bucket
from spola.server.serve import check_host
from support.running import Running
from support.serving import ask, serving

ALICE, BOB = "alice-secret-0123456789", "bob-secret-0123456789ab"
FILE = f"""
[alice]
secret = "{ALICE}"
weight = 2
[bob]
secret = "{BOB}"
requests_per_minute = 3
tokens_per_minute = 1e6
"""
PROMPT = {"prompt": "a", "max_tokens": 2}
GOOD = {"Authorization": f"Bearer {ALICE}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys.toml").write_text(FILE)
    server = ServerOptions(
        keys=read_keys(folder / "keys.toml", "env-secret-0123456789"), cors_origins=("https://chat.example",)
    )
    with serving(folder, server=server) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        {"Authorization": f"bearer {ALICE}"},
        {"Authorization": f"BEARER   {BOB}"},
        {"x-api-key": ALICE},
        {"X-API-Key": "env-secret-0123456789"},
    ],
)
def test_a_key_is_taken_as_clients_send_it(guarded: Running, headers: dict[str, str]) -> None:
    assert ask(guarded, "/v1/completions", PROMPT, headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": f"Bearer {ALICE}x"},
        {"Authorization": f"Bearer {ALICE[:-1]}"},
        {"Authorization": "Bearer \xff\xfe"},
        {"x-api-key": "wrong"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/metrics", "/nothing", "/v1/messages"])
def test_no_route_without_a_key(guarded: Running, headers: dict[str, str], path: str) -> None:
    answer = ask(guarded, path, PROMPT if path == "/v1/completions" else None, headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert ALICE[:5] not in answer.data.decode()
    if path == "/v1/messages":
        assert answer.body["error"]["type"] == "authentication_error"
    else:
        assert answer.body["error"]["code"] == "invalid_api_key"


def test_health_and_the_page_need_no_key(guarded: Running) -> None:
    assert ask(guarded, "/health").status == 200
    assert ask(guarded, "/").status == 200
    assert ask(guarded, "/health", headers={"x-api-key": "wrong"}).status == 200


def test_a_preflight_needs_no_key_and_says_what_is_allowed(guarded: Running) -> None:
    asked = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = ask(guarded, "/v1/chat/completions", headers=asked, method="OPTIONS")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in answer.headers
    asked["Origin"] = "https://evil.example"
    answer = ask(guarded, "/v1/chat/completions", headers=asked, method="OPTIONS")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/completions", PROMPT, GOOD, 200),
        ("/v1/completions", {**PROMPT, "stream": True}, GOOD, 200),
        ("/v1/completions", PROMPT, {}, 401),
        ("/v1/completions", {"prompt": 5}, GOOD, 400),
        ("/nothing", None, GOOD, 404),
    ],
)
def test_a_page_that_was_named_may_read_every_answer(
    guarded: Running, path: str, body: object, headers: dict[str, str], status: int
) -> None:
    answer = ask(guarded, path, body, {**headers, "Origin": "https://chat.example"})
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    answer = ask(guarded, path, body, {**headers, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert answer.status == (403 if body else status)


def test_a_page_that_was_named_may_read_a_bug_too(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(prompt: object, **how: object) -> None:
        raise ZeroDivisionError(ALICE)

    monkeypatch.setattr(guarded.service, "prompt_ids", burst)
    answer = ask(guarded, "/v1/completions", PROMPT, {**GOOD, "Origin": "https://chat.example"})
    assert (answer.status, answer.body["error"]["message"]) == (500, "internal error")
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"


@pytest.mark.parametrize("path", ["/props", "/info", "/v1/models", "/api/tags", "/version", "/openapi.json"])
def test_no_answer_holds_a_secret(guarded: Running, path: str) -> None:
    answer = ask(guarded, path, headers=GOOD)
    assert answer.status == 200
    for secret in (ALICE, BOB, "env-secret"):
        assert secret.encode() not in answer.data


def test_of_two_secrets_one_that_is_right_is_enough(guarded: Running) -> None:
    """R37: the same rule in both orders; the Authorization header comes first."""
    bearer, own = {"Authorization": f"Bearer {ALICE}"}, {"x-api-key": "env-secret-0123456789"}
    for headers, name in (
        ({**bearer, **own}, "alice"),
        ({**bearer, "x-api-key": "wrong"}, "alice"),
        ({"Authorization": "Bearer wrong", **own}, "env"),
    ):
        account = guarded.state.accounts.all[name]
        before = account.requests
        assert ask(guarded, "/v1/completions", PROMPT, headers).status == 200
        assert account.requests == before + 1
    wrong = {"Authorization": "Bearer wrong", "x-api-key": "wrong"}
    assert ask(guarded, "/v1/completions", PROMPT, wrong).status == 401


def test_without_keys_only_pages_of_this_machine_may_post(running: Running) -> None:
    own = running.url
    assert ask(running, "/v1/completions", PROMPT, {"Origin": own}).status == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = ask(running, "/v1/completions", PROMPT, {"Origin": origin})
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
    # A name that was made to point here: the browser takes the page for this server's own.
    rebound = {"Origin": "http://evil.example:80", "Host": "evil.example:80"}
    assert ask(running, "/v1/completions", PROMPT, rebound).status == 403


def test_a_key_that_has_used_its_minute_waits(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(FILE)
    with serving(tmp_path, server=ServerOptions(keys=read_keys(tmp_path / "keys.toml"))) as running:
        bob = {"Authorization": f"Bearer {BOB}"}
        # A wrong request costs nothing.
        assert ask(running, "/v1/completions", {"prompt": ""}, bob).status == 400
        statuses = [ask(running, "/v1/completions", PROMPT, bob).status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        answer = ask(running, "/v1/completions", PROMPT, bob)
        assert answer.body["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert ask(running, "/v1/completions", PROMPT, GOOD).status == 200
        account = running.state.accounts.all["bob"]
        assert (account.requests, account.refused, account.output_tokens) == (3, 2, 6)


def test_tokens_are_paid_when_they_are_known() -> None:
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])
    assert bucket.wait_s() == 0
    bucket.take(90)
    assert bucket.wait_s() == pytest.approx(31)
    now[0] = 31.0
    assert bucket.wait_s() == pytest.approx(0)
    now[0] = 1e6
    bucket.take(60)
    assert bucket.wait_s() == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no keys"),
        ("[a", "not valid TOML"),
        ("a = 1", "[a]: must be a table"),
        ('["a b"]\nsecret = "0123456789abcdef"', "a name has"),
        ("[a]", "a secret has at least 16"),
        ('[a]\nsecret = "short"', "a secret has at least 16"),
        ('[a]\nsecret = "0123456789 abcdef"', "printable ASCII"),
        ('[a]\nsecret = "0123456789abcdef"\nweigth = 2', "'weigth' is none of"),
        ('[a]\nsecret = "0123456789abcdef"\nweight = 0', "weight must be a number above 0"),
        ('[a]\nsecret = "0123456789abcdef"\nweight = true', "weight must be"),
        ('[a]\nsecret = "0123456789abcdef"\nweight = nan', "weight must be"),
        ('[a]\nsecret = "0123456789abcdef"\n[b]\nsecret = "0123456789abcdef"', "the same secret"),
    ],
)
def test_a_wrong_file_is_refused_and_no_secret_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert said in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_a_host_that_others_can_reach_needs_keys() -> None:
    check_host("127.0.0.1", keys=False, no_auth=False)
    check_host("::1", keys=False, no_auth=False)
    check_host("0.0.0.0", keys=True, no_auth=False)
    check_host("0.0.0.0", keys=False, no_auth=True)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ConfigError, match="--no-auth"):
            check_host(host, keys=False, no_auth=False)


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "ftp://x", "https://", ""])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        ServerOptions(cors_origins=(origin,))


def test_what_keys_have_used_is_booked(guarded: Running) -> None:
    account = guarded.state.accounts.all["alice"]
    before = (account.requests, account.prompt_tokens, account.output_tokens)
    usage = ask(guarded, "/v1/completions", PROMPT, GOOD).body["usage"]
    after = (account.requests, account.prompt_tokens, account.output_tokens)
    assert after == (
        before[0] + 1,
        before[1] + usage["prompt_tokens"],
        before[2] + usage["completion_tokens"],
    )
