"""A server process, with clients that use raw sockets or HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.process import LIMIT, limited

_START = """
import json, sys
from nmt.cli.messages import configure_logging
from nmt.extras.serving.options import ServeOptions, serve
configure_logging()
serve(ServeOptions(**{"port": 0, **json.loads(sys.argv[1])}))
"""


class Server:
    """A server of some models; ready when the constructor returns."""

    def __init__(self, models: Mapping[str, Path], **options: Any) -> None:
        named = [f"{name}={folder}" for name, folder in models.items()]
        argument = json.dumps({"models": named, "threads": 2, **options})
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, argument],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.log: list[str] = []
        self.port = int(self._wait_for(r"http://127\.0\.0\.1:(\d+)"))
        self._wait_for(r"(ready)$")
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        self.get = self.client.get

    def _wait_for(self, pattern: str) -> str:
        assert self.process.stderr is not None
        with limited(self.process):
            for line in self.process.stderr:
                self.log.append(line)
                if found := re.search(pattern, line):
                    return found[1]
        raise AssertionError(f"the server ended: {self.log}")

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Content-Type": "application/json", **own}
        return self.client.post(path, content=content, headers=sent)

    def translate(self, *texts: Any, **fields: Any) -> list[dict[str, Any]]:
        """Return the answers for some texts; the status must be 200."""
        answer = self.post("/v1/translate", {"texts": list(texts), **fields})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["translations"]
        return found

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def gauge(self, name: str) -> float:
        """Return one value of /metrics."""
        found = re.search(rf"^nmt_{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        with limited(self.process):
            self.log += self.process.stderr.readlines()
        return self.process.wait(LIMIT)

    def close(self) -> None:
        """Kill the process, even if it hangs."""
        self.client.close()
        self.process.kill()
        self.process.wait(LIMIT)
        assert self.process.stderr is not None
        self.process.stderr.close()


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes or resets the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def head(body: bytes, path: str = "/v1/translate") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
