"""Access control: Host, Origin, keys, rates, proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

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
    with pytest.raises(ConfigError, match="fix: Check the path"):
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


def test_other_machines_need_a_key_unless_the_options_allow_them(tmp_path: Path) -> None:
    for allowed in ({}, {"host": "::1"}, {"host": "0.0.0.0", "no_auth": True}):
        ServeOptions(models=("m",), **allowed)
    ServeOptions(models=("m",), host="0.0.0.0", api_keys=tmp_path)
    with pytest.raises(ConfigError, match="without a key"):
        ServeOptions(models=("m",), host="0.0.0.0")
