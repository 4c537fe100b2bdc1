"""Access control: Host, Origin, keys, rates, proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.cli.builder import fields_of
from nmt.errors import ConfigError
from nmt.extras.serving import options
from nmt.extras.serving.access import RateLimiter, digest, read_keys
from nmt.extras.serving.options import Rate, ServeOptions
from tests.extras.serving.conftest import Inside

KEY, OTHER = "k" * 24, "o" * 24
BODY = {"texts": [""]}


@pytest.mark.parametrize(("name", "values", "status"), [
    ("Host", "localhost:8080, 127.0.0.1:9, [::1]:9, MT.example.org", 200),
    ("Host", "evil.example", 403),  # DNS rebinding
    ("Host", "a b", 400),
    ("Origin", "http://localhost, https://friend.example", 200),
    ("Origin", "http://localhost:9, null, https://evil.example", 403),
])  # fmt: skip
def test_sites(inside: Inside, name: str, values: str, status: int) -> None:
    """FAULTS 51."""
    client = inside(allow_host=("mt.example.org",), allow_origin=("https://friend.example",))
    for value in values.split(", "):
        headers = {"Host": "localhost", name: value}
        answer = client.post("/v1/translate", json=BODY | {"model": "de-en"}, headers=headers)
        assert answer.status_code == status
        allowed = value == "https://friend.example"
        assert ("access-control-allow-origin" in answer.headers) == allowed
        assert status == 200 or answer.json().keys() == {"error", "fix"}
        if name == "Origin" and status == 403:
            assert answer.json()["fix"].endswith(f" NMT_ALLOW_ORIGIN={value}")


@pytest.mark.parametrize("origin", ["moz-extension://4f2c-11", "app://.", "null"])
def test_origins_that_are_not_websites_can_be_allowed(inside: Inside, origin: str) -> None:
    client = inside(allow_origin=(options.parse_origin(origin),))
    answer = client.post("/detect", json={"q": "a"}, headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin


def test_names_without_a_dot_are_hosts_of_a_server_that_others_reach(inside: Inside) -> None:
    """As the names of services in docker-compose and Kubernetes."""

    def status(name: str, **settings: Any) -> int:
        headers = {"Host": name}
        return int(inside(**settings).get("/health", headers=headers).status_code)

    public: dict[str, Any] = {"host": "0.0.0.0", "no_auth": True}
    assert status("translator:8080", **public) == 200
    assert status("translator.evil.example", **public) == 403
    assert status("translator:8080") == 403


def test_an_allowed_origin_may_send_a_preflight_request(inside: Inside) -> None:
    client = inside(allow_origin=("https://friend.example",))
    headers = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/v1/translate", headers=headers)
    assert answer.status_code == 200
    assert "content-type" in answer.headers["access-control-allow-headers"].lower()
    answer = client.options("/v1/translate", headers={**headers, "Origin": "https://x.example"})
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


def test_keys(inside: Inside) -> None:
    client = inside(keys={KEY: "anna"})

    def status(path: str = "/v1/translate", body: Any = BODY, **headers: str) -> int:
        return int(client.post(path, json=body, headers=headers).status_code)

    assert [status(), status(Authorization=f"Basic {KEY}")] == [401, 401]
    assert status(Authorization=f"Bearer {OTHER}") == 403
    assert status(Authorization=f"Bearer {KEY}", body=BODY | {"model": "de-en"}) == 200
    libre = {"q": "", "source": "de", "target": "en"}
    assert status("/translate", libre) == 401
    assert status("/translate", libre | {"api_key": OTHER}) == 403
    assert status("/translate", libre | {"api_key": KEY}) == 200
    assert status("/translate", libre, Authorization=f"bearer {KEY}") == 200
    assert client.post("/translate", data=libre | {"api_key": KEY}).status_code == 200
    for path, wanted in (("/v1/models", 401), ("/metrics", 401), ("/health/live", 200),
                         ("/languages", 200), ("/openapi.json", 200)):  # fmt: skip
        assert client.get(path).status_code == wanted


def test_a_client_over_its_rate_gets_429(inside: Inside) -> None:
    """Clients on this machine are limited only if the rate is set."""

    def answers(client: TestClient, times: int) -> list[Response]:
        return [client.post("/detect", json={"q": "a"}) for _ in range(times)]

    found = answers(inside(rate=Rate(3, 3600)), 5)
    assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
    assert 1000 < int(found[-1].headers["retry-after"]) <= 1200
    assert {each.status_code for each in answers(inside(), 70)} == {200}
    statuses = [each.status_code for each in answers(inside(address="192.0.2.1"), 70)]
    assert statuses[:60] == [200] * 60
    assert 429 in statuses[60:]
    client = inside(address="192.0.2.1", no_auth=True)
    assert {each.status_code for each in answers(client, 70)} == {200}
    client = inside(address="192.0.2.1", no_auth=True, rate=Rate(3, 3600))
    assert 429 in [each.status_code for each in answers(client, 5)]


def test_each_key_has_its_own_rate(inside: Inside) -> None:
    client = inside(keys={KEY: "anna", OTHER: "ben"}, rate=Rate(1, 3600))

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return int(client.post("/detect", json={"q": "a"}, headers=headers).status_code)

    assert [status(key) for key in (KEY, KEY, OTHER)] == [200, 429, 200]


def test_a_wait_below_a_second_is_rounded_up(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waits for 0 seconds would be refused again at once."""
    monkeypatch.setattr(RateLimiter, "wait", lambda *_: 0.2)
    answer = inside(rate=Rate(5, 1)).post("/detect", json={"q": "a"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_forwarded_addresses_count_only_from_trusted_proxies(inside: Inside) -> None:
    def asked(client: Any, forwarded: str) -> int:
        headers = {"X-Forwarded-For": forwarded}
        return int(client.post("/detect", json={"q": "a"}, headers=headers).status_code)

    proxy, stranger = (
        inside(rate=Rate(1, 3600), trusted_proxy=("10.0.0.0/8",), address=address)
        for address in ("10.1.1.1", "192.0.2.1")
    )
    assert [asked(proxy, x) for x in ("1.1.1.1", "2.2.2.2", "9.9.9.9, 1.1.1.1")] == [200, 200, 429]
    assert asked(proxy, "3.3.3.3, 10.2.2.2") == 200  # through two of them
    assert asked(proxy, "9.9.9.9, 3.3.3.3") == 429  # the client's own claim is ignored
    assert [asked(stranger, x) for x in ("4.4.4.4", "5.5.5.5")] == [200, 429]


def test_buckets_fill_again_and_are_forgotten() -> None:
    now = [0.0]
    limiter = RateLimiter(Rate(2, 10), lambda: now[0])
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 5]
    now[0] = 5
    assert [limiter.wait("a") for _ in range(2)] == [0, 5]
    now[0] = 1000  # a full bucket has 2 requests, however long it was not used
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 5]
    for number in range(20_000):
        limiter.wait(str(number))
    assert len(limiter._buckets) <= 10_000


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nanna {KEY}\n\n{OTHER} # nobody\n", encoding="utf-8")
    assert read_keys(file) == {digest(KEY): "anna", digest(OTHER): "key 4"}
    for text in ("", "short", f"{KEY}\n{KEY}", f"a b {KEY}"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError):
            read_keys(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="fix: Use a UTF-8 text file"):
        read_keys(file)
    with pytest.raises(ConfigError, match="fix: Pass a file of keys"):
        read_keys(tmp_path / "missing")


@pytest.mark.parametrize(("name", "texts"), [
    ("rate", ["often", "0/min"]),
    ("network", ["10.0.0.0/99"]),
    ("origin", ["example.org"]),
    ("host", ["https://mt.example.org", "mt.example.org:80"]),
    ("path", ["/a b"]),
])  # fmt: skip
def test_wrong_options_are_refused(name: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=r"[a-z]"):
            getattr(options, f"parse_{name}")(text)


def test_every_flag_has_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[ServeOptions]()
    monkeypatch.setattr(options, "serve", found.append)
    # One value that each flag accepts, and that is not its default.
    examples = {
        "engine": "torch", "dtype": "int8", "host": "::1", "api_keys": "keys.txt", "rate": "5/s",
        "allow_origin": "https://a.example app://b", "allow_host": "a.example b",
        "root_path": "/mt", "trusted_proxy": "10.0.0.0/8",
    }  # fmt: skip
    defaults = ServeOptions(models=("m",))
    names = {field.name for field in fields_of(ServeOptions)} - {"models"}
    variables = {f"NMT_{name.upper()}": examples.get(name, "1") for name in names}
    result = CliRunner(env=variables).invoke(app, ["serve", "m", "--max-texts", "9"])
    assert result.exit_code == 0, result.output
    (read,) = found
    unchanged = {name for name in names if getattr(read, name) == getattr(defaults, name)}
    assert unchanged == set()
    assert (read.allow_host, read.max_texts) == (("a.example", "b"), 9)  # a flag counts first


def test_the_address_that_kubernetes_sets_for_a_service_named_nmt_is_not_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = list[int]()
    monkeypatch.setattr(options, "serve", lambda served: ports.append(served.port))
    for value in ("tcp://10.3.2.1:9000", "9001"):
        result = CliRunner(env={"NMT_PORT": value}).invoke(app, ["serve", "m"])
        assert result.exit_code == 0, result.output
    assert ports == [ServeOptions(models=("m",)).port, 9001]


@pytest.mark.parametrize(("text", "rate", "shown"), [
    ("5/s", (5, 1), "5/s"), ("5/sec", (5, 1), "5/s"), (" 60/MIN ", (60, 60), "60/min"),
    ("60/m", (60, 60), "60/min"), ("2/h", (2, 3600), "2/h"), ("2/hour", (2, 3600), "2/h"),
])  # fmt: skip
def test_a_rate_has_requests_and_seconds(text: str, rate: Rate, shown: str) -> None:
    assert options.parse_rate(text) == rate
    assert str(options.parse_rate(text)) == shown


def test_options_are_read_in_the_form_that_headers_are_compared_with() -> None:
    assert options.parse_origin("https://Friend.Example/") == "https://friend.example"
    assert options.parse_host("MT.Example.org") == "mt.example.org"
    assert options.parse_path("/mt/") == "/mt"
    assert options.parse_network("10.1.2.3/8") == "10.0.0.0/8"


def test_the_page_and_the_metrics_can_be_switched_off(inside: Inside) -> None:
    for settings, page, metrics in (
        ({}, 200, 200),
        ({"no_page": True}, 404, 200),
        ({"no_metrics": True}, 200, 404),
    ):
        client = inside(**settings)
        statuses = [client.get(path).status_code for path in ("/", "/metrics", "/health")]
        assert statuses == [page, metrics, 200]


def test_no_answer_is_stored_or_guessed_by_browsers(inside: Inside) -> None:
    client = inside()
    answers = [client.get(path) for path in ("/", "/v1/models", "/v1/nothing", "/health/live")]
    answers.append(client.post("/v1/translate", json={}))
    assert [each.status_code for each in answers] == [200, 200, 404, 200, 422]
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_other_machines_need_a_key_unless_the_options_allow_them(tmp_path: Path) -> None:
    for allowed in ({}, {"host": "::1"}, {"host": "0.0.0.0", "no_auth": True}):
        ServeOptions(models=("m",), **allowed)
    ServeOptions(models=("m",), host="0.0.0.0", api_keys=tmp_path)
    with pytest.raises(ConfigError, match="without a key"):
        ServeOptions(models=("m",), host="0.0.0.0")
