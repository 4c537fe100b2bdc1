"""A server in a process of its own, and clients of it: raw sockets and plain HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

_START = """
import json, sys
from nmt.cli.messages import configure_logging
from nmt.extras.serving.command import serve
from nmt.extras.serving.options import ServeOptions
configure_logging()
serve(ServeOptions(**{"port": 0, **json.loads(sys.argv[1])}))
"""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A server of some models; ready when the constructor returns."""

    def __init__(self, models: Mapping[str, Path], **options: Any) -> None:
        named = [f"{name}={folder}" for name, folder in models.items()]
        argument = json.dumps({"models": named, "threads": 2, **options})
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, argument],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.log: list[str] = []
        self.port = int(self._wait_for(r"http://127\.0\.0\.1:(\d+)"))
        self._wait_for(r"(ready)$")

    def _wait_for(self, pattern: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"the server ended: {self.log}")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask over a new connection; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        with closing(connection):
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.request("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def translate(self, *texts: Any, **fields: Any) -> list[dict[str, Any]]:
        """Return the answers for some texts, which must be fine."""
        answer = self.post("/v1/translate", {"texts": list(texts), **fields})
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json["translations"]
        return found

    def connect(self) -> socket.socket:
        """Open a raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes until the server closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def gauge(self, name: str) -> float:
        """Return a number of /metrics."""
        found = re.search(rf"^nmt_{name} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.log += self.process.stderr.readlines()
        return self.process.wait(30)

    def close(self) -> None:
        """End it whatever it does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes or resets."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def head(body: bytes, path: str = "/v1/translate", *extra: str) -> bytes:
    """Return the head of a POST with this body."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(body)}", *extra]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer."""
    return int(answer.split(b" ", 2)[1])
