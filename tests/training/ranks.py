"""Runs `nmt train` in several processes, many times, at the price of one import of torch.

A server process imports everything and forks: either one child for each rank, with the environment
that torch's launcher would give it, or one that is a launcher itself, whose ranks are real new
processes. One rank may get into `Trouble`. Started as ``python -m tests.training.ranks FOLDER``; a
request is one JSON line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.training.runs import Harm, Result, _run

ROOT = Path(__file__).parents[2]
DEADLINE = 60
"""Seconds until those that still run are killed, with code -9: FAULTS 28 and 29 allow no more."""
_TROUBLE = "TROUBLE"


@dataclass(frozen=True)
class Trouble:
    """What happens to one rank at the start of an update."""

    rank: int
    update: int
    """From 1."""
    signals: tuple[int, ...] = ()
    """Sent to itself."""
    message: str = ""
    """Or: of an error that it raises."""


@dataclass(frozen=True)
class Shot:
    """A signal to a launcher, once a file has content."""

    number: int
    """SIGINT goes to the whole process group, as from a terminal."""
    when: str


class Ranks:
    """Trains in several processes; a context manager. All run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        # Without GPUs: there may be one, and then two processes are refused.
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.training.ranks", str(self.folder)],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.communicate(timeout=60)

    def train(
        self, *arguments: str, num: int = 2, trouble: Trouble | None = None, agent: bool = True
    ) -> list[Result]:
        """Run ``nmt train`` in ``num`` ranks; return how each ended.

        Without an ``agent``, the first rank keeps the store by which they find each other.
        """
        return self._ask(
            {"arguments": ["train", *arguments], "num": num, "agent": agent}, trouble=trouble
        )

    def script(self, source: str, num: int = 2, shot: Shot | None = None) -> list[Result]:
        """Run Python code in ``num`` ranks, or in one process that is none."""
        return self._ask({"script": source, "num": num, "shot": shot and asdict(shot)})

    def launch(
        self, *arguments: str, trouble: Trouble | None = None, shot: Shot | None = None
    ) -> Result:
        """Run ``nmt train --devices 2``."""
        request = {"arguments": ["train", *arguments, "--devices=2"], "shot": shot and asdict(shot)}
        return self._ask(request | {"num": 0}, trouble=trouble)[0]

    def torchrun(self, *arguments: str) -> Result:
        """Run ``torchrun --nproc-per-node 2 -m nmt train``."""
        script = f"""
import runpy, sys
sys.argv = ["torchrun", "--nproc-per-node", "2", "-m", "nmt", "train", *{list(arguments)}]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
        return self.script(script, num=0)[0]

    def machines(self, *arguments: str) -> list[Result]:
        """Run ``torchrun --nnodes 2 -m nmt train`` twice: a launcher for each of two machines."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"localhost:{free.getsockname()[1]}"
        script = f"""
import os, runpy, sys
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    del os.environ[name]  # of a machine, nothing is known before they have met
sys.argv = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
sys.argv += ["--rdzv-endpoint", "{endpoint}", "-m", "nmt", "train", *{list(arguments)}]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
        return self.script(script, num=2)

    def _ask(self, request: dict[str, Any], trouble: Trouble | None = None) -> list[Result]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request |= {"trouble": trouble and asdict(trouble)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return [Result(**result) for result in json.loads(self._server.stdout.readline())]


def _serve() -> None:
    os.chdir(sys.argv[1])
    Path("sitecustomize.py").write_text("from tests.training.ranks import arm\narm()\n")
    for name in ("nmt.recipes.train", "nmt.training.launch", "torch._dynamo"):
        importlib.import_module(name)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        agent, port = _store(request)
        begin = time.monotonic()
        children = []
        for rank in range(max(request["num"], 1)):
            outputs = [Path(f"{number}.{rank}.{name}").absolute() for name in ("out", "err")]
            if (child := os.fork()) == 0:
                _be(rank, port, request, outputs)
            children.append((child, outputs))
        if shot := request.get("shot"):
            _shoot(children[0][0], Shot(**shot))
        results = []
        for child, outputs in children:
            code = _wait(child, begin + DEADLINE)
            out, err = (path.read_text() for path in outputs)
            results.append(asdict(Result(code, time.monotonic() - begin, err, out)))
        if agent:
            os.kill(agent, signal.SIGKILL)
            os.waitpid(agent, 0)
        print(json.dumps(results), flush=True)  # noqa: T201


def _store(request: dict[str, Any]) -> tuple[int, int]:
    """Return the process that keeps the store of the ranks, 0 if it is one of them; its port."""
    if not request["num"]:
        return 0, 0
    if not request.get("agent", True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return 0, free.getsockname()[1]
    reader, writer = os.pipe()
    if (agent := os.fork()) == 0:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{store.port}\n".encode())
        signal.pause()
    os.close(writer)
    with os.fdopen(reader) as answer:
        return agent, int(answer.readline())


def _be(rank: int, port: int, request: dict[str, Any], outputs: list[Path]) -> None:
    """Be one rank, or a launcher of its own process group; never returns."""
    if request["num"]:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": request["num"]}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0}
        place["TORCHELASTIC_USE_AGENT_STORE"] = request.get("agent", True)
        os.environ.update({name: str(value) for name, value in place.items()})
    else:
        os.setpgid(0, 0)
        os.environ["PYTHONPATH"] = f"{Path.cwd()}:{ROOT}"
    if request["trouble"]:
        os.environ[_TROUBLE] = json.dumps(request["trouble"])
        arm()
    if script := request.get("script"):
        vars(importlib.import_module("nmt.cli"))["main"] = lambda: exec(script, {})
    _run(request.get("arguments", []), Harm(), outputs)


def _shoot(launcher: int, shot: Shot) -> None:
    path, end = Path(shot.when), time.monotonic() + DEADLINE
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.002)
    send = os.killpg if shot.number == signal.SIGINT else os.kill
    send(launcher, shot.number)


def _wait(child: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def arm() -> None:
    """Get into the trouble that the environment tells, if it is this rank's."""
    trouble = Trouble(**json.loads(os.environ.get(_TROUBLE, '{"rank": -1, "update": 0}')))
    if os.environ.get("RANK") != str(trouble.rank):
        return
    from nmt.training.update import Updater

    update, calls = Updater.__call__, 0

    def troubled(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == trouble.update:
            for number in trouble.signals:
                signal.raise_signal(number)
            if trouble.message:
                raise RuntimeError(trouble.message)
        return update(*arguments, **options)

    setattr(Updater, "__call__", troubled)  # noqa: B010 - mypy forbids the plain way


if __name__ == "__main__":
    _serve()
