"""Broken requests, hostile clients, and SIGTERM under load."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from tests.extras.serving.conftest import Inside
from tests.extras.serving.process import Server, head, read_all, status_of

PATH = "/v1/translate"
GOOD = json.dumps({"texts": ["der Hund"]}).encode()
HEAD = head(GOOD)
TEXTS, OPTIONS = b'{"texts": [%s]}', b'{"texts": ["a"], "options": {"%s": %s}}'
CHUNKED = b"Content-Length: 23", b"Transfer-Encoding: chunked"
BOTH_LENGTHS = HEAD.replace(CHUNKED[0], b"\r\n".join(CHUNKED))


@pytest.fixture(autouse=True)
def _still_serves(request: pytest.FixtureRequest) -> Any:
    """After every fault, the next client gets an answer and no request is left active."""
    yield
    if "server" in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        assert server.translate("der Hund")[0]["translation"]
        assert wait_until(lambda: not server.gauge("active_requests"))


def wait_until(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def error_of(answer: Response, status: int) -> str:
    """Check status and fix of an error; return its message."""
    assert answer.status_code == status, answer
    assert answer.json()["fix"]
    return str(answer.json()["error"])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(HEAD + GOOD[:5], 408, id="half a body"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(HEAD.replace(b": 23", b": -3") + GOOD, 400, id="negative length"),
        pytest.param(HEAD.replace(b": 23", b": " + b"9" * 30) + GOOD, 400, id="huge length"),
        pytest.param(HEAD.replace(b": 23", b": 999999999") + GOOD, 413, id="too long"),
        pytest.param(HEAD.replace(*CHUNKED) + b"zz\r\n", 400, id="bad chunk"),
        pytest.param(BOTH_LENGTHS + GOOD, 400, id="two lengths"),
        pytest.param(HEAD.replace(b"Host: localhost\r\n", b"") + GOOD, 400, id="no host"),
        pytest.param(HEAD.replace(b": 23", b": 19") + GOOD + b"\r\n\r\n", 422, id="short length"),
    ],
)  # fmt: skip
def test_broken_requests_end_with_an_answer_or_the_connection(
    server: Server, sent: bytes, status: int
) -> None:
    assert b": 23" in HEAD
    begin = time.monotonic()
    with server.connect() as slow, server.connect() as connection:
        slow.sendall(HEAD[:9])  # makes nobody else wait
        connection.sendall(sent)
        answer = read_all(connection)
    assert time.monotonic() - begin < 15
    assert status_of(answer) == status
    body = answer.partition(b"\r\n\r\n")[2].decode()
    assert json.JSONDecoder().raw_decode(body)[0].keys() == {"error", "fix"}


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        pytest.param(b"", 422, "required", id="nothing"),
        pytest.param(b"{" * 9, 422, "Expecting", id="no JSON"),
        pytest.param(b"[" * 20_000 + b"]" * 20_000, 422, "not JSON", id="deep JSON"),
        pytest.param(b'{"texts": ["\xff"]}', 422, "not JSON", id="no UTF-8"),
        pytest.param(b'{"texts": ["a\x00b"]}', 422, "control", id="raw NUL"),
        pytest.param(TEXTS % (b'"",' * 1_000_000 + b'""'), 413, "larger", id="a million texts"),
        pytest.param(TEXTS % (b'"",' * 9_999 + b'""'), 413, "10,000 texts", id="10,000 texts"),
        pytest.param(TEXTS % (b'"%s"' % (b"a" * 2_001)), 413, "2,001 char", id="2,001 characters"),
        pytest.param(OPTIONS % (b"beam_size", b"9" * 500), 422, "beam_size", id="huge number"),
        pytest.param(OPTIONS % (b"beam_size", b"1000"), 422, "beam_size", id="wide beam"),
        pytest.param(OPTIONS % (b"length_penalty", b"NaN"), 422, "", id="NaN"),
        pytest.param(OPTIONS % (b"n_best", b"16"), 422, "n_best", id="options that disagree"),
        pytest.param(TEXTS % b"1, {}", 422, "texts.0: input should be a valid str", id="no texts"),
        pytest.param(b'{"texts": ["a"], "beam_siz": 1}', 422, "beam_size?", id="unknown field"),
        pytest.param(b'{"text": "a"}', 422, "did you mean texts?", id="text"),
        pytest.param(OPTIONS % (b"beam_siz", b"1"), 422, "beam_size?", id="unknown option"),
        pytest.param(b'{"texts": ["a"], "model": "../x"}', 422, "no model", id="a path"),
        pytest.param(b'{"texts": ["a"], "target": "fr"}', 422, "No model", id="unknown pair"),
        pytest.param(b"[]", 422, "body", id="a list"),
    ],
)  # fmt: skip
def test_bad_bodies_are_explained(server: Server, body: bytes, status: int, word: str) -> None:
    assert word in error_of(server.post(PATH, body, Content_Type="application/json"), status)


def test_a_body_of_100_megabytes_is_refused_without_delaying_others(server: Server) -> None:
    """FAULTS 50. A body with a declared length is not even read."""
    with server.connect() as connection:
        connection.sendall(head(b"").replace(b": 0", b": 104857600") + b"x" * 65536)
        assert server.translate("der Hund")[0]["translation"]
        assert status_of(read_all(connection)) == 413


def test_a_body_without_a_length_is_refused_beyond_the_limit(server: Server) -> None:
    """The limit: 12 bytes for each of 2,000 characters, 256 for each of 40 texts, 65,536 others."""
    most = 12 * 2000 + 256 * 40 + 65_536

    def upload(size: int) -> Response:
        body = GOOD + b" " * (size - len(GOOD))
        parts = [body[start : start + 10_000] for start in range(0, size, 10_000)]
        kind = {"Content-Type": "application/json"}
        return server.client.post(PATH, content=iter(parts), headers=kind)

    answer = upload(most)
    assert answer.status_code == 200
    assert answer.request.headers["transfer-encoding"] == "chunked"
    for size in (most + 1, 5 * most):
        assert "larger" in error_of(upload(size), 413)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended a connection that sends nothing more."""
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.long
def test_connections_without_a_complete_head_end_and_others_are_served(
    models: dict[str, Path],
) -> None:
    """Silent clients, unfinished heads, and a head after an answer; none of them is logged."""
    answered = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(Server(models, body_seconds=1, rate=None)) as server, ExitStack() as stack:
        connections = []
        for sent in [b"", HEAD[:9], answered + b"GET"] * 10:
            connection = stack.enter_context(server.connect())
            connection.sendall(sent)
            connections.append(connection)
        assert server.get("/health").status_code == 200
        for connection, sent in zip(connections, [b"", HEAD[:9], answered] * 10, strict=True):
            if sent == answered:
                assert status_of(connection.recv(1 << 16)) == 200
            assert is_closed(connection)
        # A client that keeps sending does not gain time, either.
        with server.connect() as connection:
            for byte in HEAD[:60]:
                with suppress(ConnectionError):
                    connection.sendall(bytes([byte]))
                time.sleep(0.05)
            assert is_closed(connection)
        assert server.get("/health").status_code == 200
        num_lines = len(server.log)
        server.stop()
        assert len(server.log) - num_lines < 10


def test_one_address_does_not_take_all_connections(models: dict[str, Path]) -> None:
    with closing(Server(models, max_connections=40)) as server, ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(60)]
        # Of 40 connections, one address may have 10: the health check is at another address.
        assert sum(map(is_closed, connections[10:])) == 50
        with socket.create_connection(
            ("127.0.0.1", server.port), timeout=20, source_address=("127.0.0.2", 0)
        ) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(connection.recv(1 << 16)) == 200
        for connection in connections:
            connection.close()
        assert wait_until(lambda: server.get("/health").status_code == 200)


def test_every_text_counts_in_the_limit_of_characters(inside: Inside) -> None:
    client = inside(max_chars=10)
    for path, body in (
        (PATH, '{"texts": ["123MORE"], "model": "de-en"}'),
        (PATH, '{"texts": ["123", {"text": "MORE"}], "model": "de-en"}'),
        (PATH, '{"texts": [{"text": "123", "prefix": "MORE"}], "model": "de-en"}'),
        (PATH, '{"texts": [{"text": "1", "required": ["23", "MORE"]}], "model": "de-en"}'),
        (PATH, '{"texts": [{"text": "1", "forbidden": ["23", "MORE"]}], "model": "de-en"}'),
        ("/v1/score", '{"pairs": [{"source": "MORE", "target": "123"}], "model": "de-en"}'),
        ("/v1/score", '{"pairs": [{"source": "123", "target": "MORE"}], "model": "de-en"}'),
        ("/v1/documents", '{"format": "txt", "text": "123MORE", "model": "de-en"}'),
        ("/translate", '{"q": "123MORE", "source": "de", "target": "en"}'),
        ("/translate", '{"q": ["123", "MORE"], "target": "en", "format": "html"}'),
        ("/detect", '{"q": ["123", "MORE"]}'),
    ):
        kind = {"Content-Type": "application/json"}
        for more, status in (("4567890", 200), ("45678901", 413)):
            answer = client.post(path, content=body.replace("MORE", more), headers=kind)
            assert answer.status_code == status, (path, body, answer.text)


def test_a_text_within_the_limit_may_be_written_with_escapes(inside: Inside) -> None:
    """JSON may write one character in 12 bytes. A document without letters needs no translation."""
    client = inside(max_chars=50_000)
    body = {"model": "de-en", "format": "txt", "text": "\U0001f600" * 50_000}
    content = json.dumps(body)
    assert len(content) > 12 * 50_000
    answer = client.post("/v1/documents", content=content)
    assert answer.status_code == 200
    assert answer.json()["text"] == body["text"]


def test_paths_methods_and_types_are_explained(server: Server) -> None:
    assert error_of(server.get("/v1/nothing"), 404)
    assert error_of(server.get(PATH), 405)
    form = "application/x-www-form-urlencoded"  # what `curl -d` declares
    assert "texts" in error_of(server.post(PATH, b"q=a", Content_Type=form), 422)
    for kind in (form, "text/plain"):
        assert server.post(PATH, GOOD, Content_Type=kind).status_code == 200
    for kind in ("pdf", "srt"):
        assert error_of(server.post("/v1/documents", {"format": kind, "text": "a"}), 422)
    pair: dict[str, Any] = {"source": "en", "target": "en"}
    assert error_of(server.post("/v1/score", {"pairs": [pair], "tag": "x"}), 422)
    assert error_of(server.post("/translate", {"q": "a", **pair}), 422)


@pytest.mark.parametrize(
    "text",
    ["a\0b", "\0", "\ud800 der Hund", "\u2028\u0085\x0c", "\x1b[31m", "<img src=x onerror=y>",
     "\U0001f468\u200d\U0001f469", "\u202edniH", "a" * 1999, "der " * 400, "\r", "\n\n"],
)  # fmt: skip
def test_nasty_texts_are_translated(server: Server, text: str) -> None:
    (own,) = server.translate(text, want=["alignment", "tokens", "attention"])
    assert "error" not in own
    assert own["source"] == text.replace("\ud800", "\ufffd")
    assert sum(map(own["translation"].count, "\r\n")) == sum(map(text.count, "\r\n"))
    form = json.dumps({"q": text, "source": "de", "target": "en", "format": "text"}).encode()
    assert server.post("/translate", form, Content_Type="application/json").status_code == 200


def test_queued_texts_of_a_client_that_goes_away_are_dropped(server: Server) -> None:
    before = server.gauge("batch_texts_sum")
    body = json.dumps({
        "texts": ["der Hund schläft und die Katze läuft"] * 40, "options": {"beam_size": 16},
        "split": False,
    }).encode()  # fmt: skip
    clients = [server.connect() for _ in range(8)]
    for client in clients:
        client.sendall(head(body) + body)
    assert wait_until(lambda: server.gauge("active_requests") == len(clients))
    clients += [server.connect() for _ in range(2)]
    clients[-2].sendall(HEAD + GOOD[:9])
    clients[-1].sendall(HEAD[:9])
    for client in clients:
        client.close()
    assert wait_until(lambda: not server.gauge("active_requests"))
    assert server.gauge("batch_texts_sum") - before < 40 * 8


def test_sigterm_under_load_loses_nothing(models: dict[str, Path]) -> None:
    texts = [f"der Hund schläft und die Katze läuft {i}" for i in range(20)]
    body = json.dumps({"texts": texts, "options": {"beam_size": 8}}).encode()
    with closing(Server({"de-en": models["de-en"]})) as server:
        expected = server.get("/health/ready").status_code
        clients = [server.connect() for _ in range(12)]
        for client in clients:
            client.sendall(head(body) + body)
        assert wait_until(lambda: server.gauge("active_requests") >= 10)
        os.kill(server.process.pid, signal.SIGTERM)
        late = server.connect()  # before the listener closes
        late.sendall(head(GOOD) + GOOD)
        assert wait_until(lambda: server.get("/health/ready").status_code == 503)
        with ThreadPoolExecutor(len(clients)) as pool:
            answers = list(pool.map(read_all, [*clients, late]))
        for client in (*clients, late):
            client.close()
        assert server.stop() == 0
        assert not re.search("Hund|Katze|test-agent", "".join(server.log))
    assert expected == 200
    assert [status_of(answer) for answer in answers] == [200] * 13
    assert any(b"connection: close" in answer.lower() for answer in answers)
    for answer in answers[:-1]:
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["translations"]) == len(texts)
