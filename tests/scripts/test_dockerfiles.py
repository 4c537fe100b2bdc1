"""The containers: what the Dockerfiles copy, install and start exists, and nothing runs as root."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.extras.serving.options import AccessOptions
from tests.process import LIMIT

ROOT = Path(__file__).parents[2]
BOTH = ("Dockerfile", "Dockerfile.cuda")


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a file in order, with their arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "scripts" / name).read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line]


def last_of(name: str, word: str) -> str:
    """The arguments of the last instruction of a kind, which is in the last stage."""
    return [arguments for kind, arguments in instructions(name) if kind == word][-1]


def words(text: str) -> list[str]:
    found: list[str] = json.loads(text)
    return found


def is_ignored(path: str) -> bool:
    """Whether .dockerignore leaves a path out: the last pattern of it, or of a parent, decides."""
    names, found = [path, *map(str, Path(path).parents)], False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/") if "**/" in line else names
        if not line.startswith("#") and fnmatch.filter(parts, pattern):
            found = not line.startswith("!")
    return found


def test_only_what_an_image_needs_is_sent_to_the_builder() -> None:
    paths = (".git/config", ".venv/x", "runs/a/b", "tests/x.py", "nmt/cli/__pycache__/x.pyc")
    assert all(map(is_ignored, paths))


@pytest.mark.parametrize("name", BOTH)
def test_what_an_image_copies_and_installs_exists(name: str) -> None:
    copied = [text.split()[:-1] for kind, text in instructions(name) if kind == "COPY"]
    for path in [path for paths in copied for path in paths if not path.startswith(("--", "/"))]:
        assert (ROOT / path).exists(), path
        assert not is_ignored(path), path
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = " ".join(text for kind, text in instructions(name) if kind == "RUN")
    (extras,) = re.findall(r"pip .*install .*'\.\[([\w,]+)\]'", installed)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("name", BOTH)
def test_a_container_does_not_run_as_root(name: str) -> None:
    kinds = [kind for kind, _ in instructions(name)]
    assert kinds.index("USER") > max(i for i, kind in enumerate(kinds) if kind in ("FROM", "RUN"))
    user, _, group = last_of(name, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_commands_of_the_containers_are_accepted() -> None:
    command = words(last_of("Dockerfile", "ENTRYPOINT"))
    assert command[:3] == ["nmt", "serve", "/model"]
    arguments = ["missing" if word == "/model" else word for word in command[1:]]
    started = CliRunner().invoke(app, arguments + words(last_of("Dockerfile", "CMD")))
    # All options fit together, so that only the model is missing.
    assert (started.exit_code, started.stderr[:15]) == (4, "error: missing ")
    assert CliRunner().invoke(app, arguments).exit_code == 2  # who replaces CMD chooses the access
    command = words(last_of("Dockerfile.cuda", "ENTRYPOINT"))
    assert command == ["nmt"]
    shown = CliRunner().invoke(app, words(last_of("Dockerfile.cuda", "CMD")))
    assert (shown.exit_code, "Usage: " in shown.stdout) == (0, True)


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_asks_whether_the_server_is_ready(status: int) -> None:
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    check = words(last_of("Dockerfile", "HEALTHCHECK").partition("CMD ")[2])
    port = AccessOptions().port
    assert last_of("Dockerfile", "EXPOSE") == str(port)
    assert check[0] == "python"
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        code = check[2].replace(f":{port}/", f":{server.server_port}/")
        done = subprocess.run(
            [sys.executable, check[1], code], capture_output=True, check=False, timeout=LIMIT
        )
        server.shutdown()
    assert asked == ["/health/ready"]
    assert (done.returncode == 0) == (status == 200)
