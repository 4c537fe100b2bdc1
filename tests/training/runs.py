"""Run `nmt train` many times, in one or several processes, with a single import of torch.

A server process imports everything and forks: a child for one process; one for each of several,
with the environment that torch's launcher would give it, but that the first one keeps the store by
which they find each other; or one that is a launcher itself, whose processes are real new ones. A
child may get into `Harm`. Started as ``python -m tests.training.runs FOLDER``; a request is one
JSON line.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file

from nmt.checkpoint.files import checkpoint_dir, list_checkpoints
from tests.process import LIMIT, limited
from tests.training.toy import STEPS

ROOT = Path(__file__).parents[2]
DEADLINE = 60
"""Seconds until those that still run are killed, with code -9: FAULTS 28 and 29 allow no more."""
_HARM = "NMT_TEST_HARM"


@dataclass(frozen=True)
class Harm:
    """What happens to a process, and when."""

    # ``prepare``, ``update``, ``validation`` or ``save``: at the start of the ``count``-th,
    # from 1. ``best``: before it is recorded which checkpoint is best. ``replaced``: when a
    # checkpoint has lost its name, to be removed or replaced.
    place: str = ""
    count: int = 0
    signals: tuple[int, ...] = ()  # Sent to itself there.
    message: str = ""  # Or: of an error that it raises there.
    kill_after: float | None = None  # Or: SIGKILL after so many seconds.
    full_saves: tuple[int, ...] = ()  # These saves, from 1, find a full disk.
    rank: int = 0  # Which of several processes.
    ahead: bool = False  # It uses threads and runs ahead of its device, as beside a GPU.


@dataclass(frozen=True)
class Result:
    """How a process ended."""

    code: int  # Exit code, or minus the signal's number.
    seconds: float
    stderr: str = field(repr=False)
    stdout: str = field(repr=False)


def codes(results: Sequence[Result]) -> list[int]:
    return [result.code for result in results]


def all_stderr(results: Sequence[Result]) -> str:
    return "".join(result.stderr for result in results)


class Server:
    """Forks trainings; a context manager. All run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        # Without GPUs: there may be one, and then two processes are refused.
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.runs", str(self.folder)],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=LIMIT)

    def train(
        self,
        *arguments: str,
        num: int | None = None,
        harm: Harm | None = None,
        stop_when: Path | None = None,
        stop_by: int | None = None,
    ) -> list[Result]:
        """Run ``nmt train`` in one process, or in ``num`` that know of each other.

        It gets the signal ``stop_by`` once the file ``stop_when`` has content.
        """
        request = {"arguments": ["train", *arguments], "num": num, "stop_by": stop_by}
        return self._ask(request | {"stop_when": stop_when and str(stop_when)}, harm)

    def script(self, source: str, num: int | None = 2) -> list[Result]:
        """Run Python code in ``num`` processes, or in one that could be a launcher."""
        return self._ask({"script": source, "num": num})

    def _ask(self, request: dict[str, Any], harm: Harm | None = None) -> list[Result]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request["harm"] = asdict(harm or Harm())
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        with limited(self._process, 4 * DEADLINE):  # the server itself ends what runs too long
            answer = self._process.stdout.readline()
        return [Result(**result) for result in json.loads(answer)]


class Run:
    """One run folder, and the ways to train in it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.config = server.folder / "toy.yaml"
        self.folder = server.folder / "runs" / name

    def arguments(self, *flags: str, **settings: object) -> list[str]:
        changes = [f"--set=training.{key}={json.dumps(value)}" for key, value in settings.items()]
        return [str(self.config), f"--run-dir={self.folder}", *changes, *flags]

    def train(self, *flags: str, harm: Harm | None = None, **settings: object) -> Result:
        return self.server.train(*self.arguments(*flags, **settings), harm=harm)[0]

    def start(
        self, *flags: str, num: int = 2, harm: Harm | None = None, **settings: Any
    ) -> list[Result]:
        return self.server.train(*self.arguments(*flags, **settings), num=num, harm=harm)

    def finish(self, *flags: str, num: int | None = None, **settings: Any) -> list[Result]:
        results = self.server.train(*self.arguments(*flags, **settings), num=num)
        assert codes(results) == [0] * (num or 1), all_stderr(results)
        return results

    def launch(
        self, *flags: str, harm: Harm | None = None, stop_by: int | None = None, **settings: object
    ) -> Result:
        """Train by ``--devices 2``; if there is a signal ``stop_by``, until there are metrics."""
        arguments = self.arguments(*flags, "--devices=2", **settings)
        when = self.folder / "metrics.jsonl" if stop_by else None
        return self.server.train(*arguments, harm=harm, stop_when=when, stop_by=stop_by)[0]

    def hashes(self, step: int = STEPS) -> dict[str, str]:
        folder = checkpoint_dir(self.folder, step)
        return {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "optimizer.safetensors", "state.json")
        }

    def weights(self) -> dict[str, np.ndarray]:
        return load_file(self.checkpoints()[-1][1] / "model.safetensors")

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl, without what depends on the clock."""
        lines = (self.folder / "metrics.jsonl").read_bytes().splitlines()
        return [
            {key: value for key, value in json.loads(line).items() if "second" not in key}
            for line in lines
        ]

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.metrics() if line["kind"] == kind]

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def checkpoints(self) -> list[tuple[int, Path]]:
        return list_checkpoints(self.folder)

    def steps(self) -> list[int]:
        return [step for step, _ in self.checkpoints()]

    def contents(self) -> dict[str, bytes]:
        """All files but the lock, which every start writes."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        }


def assert_equal(run: Run, whole: Run) -> None:
    assert run.hashes() == whole.hashes()
    assert run.metrics() == whole.metrics()
    assert (run.folder / "best").read_bytes() == (whole.folder / "best").read_bytes()
    assert not [*run.folder.rglob(".*.tmp-*")]


def _serve() -> None:
    # A shell lets what it starts in the background ignore SIGINT, and nohup SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(sys.argv[1])
    Path("sitecustomize.py").write_text("from tests.training.runs import arm\narm()\n")
    for name in ("commands.train", "training.processes", "cli.app"):
        importlib.import_module(f"nmt.{name}")  # once, for all children
    importlib.import_module("jinja2")
    importlib.import_module("torch._dynamo")
    vars(importlib.import_module("nmt.device.distributed"))["_SECONDS_TO_REPORT"] = 0.5
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begin = time.monotonic()
        children = []
        for rank in range(request["num"] or 1):
            outputs = [Path(f"{number}.{rank}.{name}").absolute() for name in ("out", "err")]
            for path in outputs:
                path.touch()  # a child that is killed at once opens none
            if (child := os.fork()) == 0:
                _be(rank, port, request, outputs)
            children.append((child, outputs))
        if stop_when := request.get("stop_when"):
            while not _has_content(Path(stop_when)) and time.monotonic() < begin + DEADLINE:
                time.sleep(0.002)
            os.kill(children[0][0], request["stop_by"])
        if (delay := request["harm"]["kill_after"]) is not None:
            time.sleep(delay)
            os.kill(children[0][0], signal.SIGKILL)  # one that has ended waits for its parent
        results = []
        for child, outputs in children:
            code = _wait(child, begin + DEADLINE)
            out, err = (path.read_text() for path in outputs)
            results.append(asdict(Result(code, time.monotonic() - begin, err, out)))
        print(json.dumps(results), flush=True)  # noqa: T201


def _be(rank: int, port: int, request: dict[str, Any], outputs: list[Path]) -> None:
    """Be ``nmt``, in a process group of its own if it may be a launcher; never returns."""
    os.environ[_HARM] = json.dumps(request["harm"])
    if request["num"]:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": request["num"]}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0}
        os.environ.update({name: str(value) for name, value in place.items()})
    else:
        os.setpgid(0, 0)
        os.environ["PYTHONPATH"] = f"{Path.cwd()}:{ROOT}"
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    from nmt import cli

    if script := request.get("script"):
        vars(cli)["main"] = lambda: exec(script, {})
    arm()
    sys.argv = ["nmt", *request.get("arguments", [])]
    code = 0
    try:
        cli.main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _wait(child: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def arm() -> None:
    """Get into the harm that the environment tells, if it is this process's."""
    harm = Harm(**json.loads(os.environ.get(_HARM, "{}")))
    if harm == Harm() or os.environ.get("RANK", "0") != str(harm.rank):
        return
    import safetensors.torch
    import torch

    from nmt.checkpoint import files
    from nmt.data.store import StoreWriter
    from nmt.device.device import DeviceQueue
    from nmt.training import update
    from nmt.training.update import Updater
    from nmt.training.validation import Validator

    if harm.ahead:
        pace = DeviceQueue(torch.device("cpu"), max_inflight_updates=64, uses_threads=True)
        vars(update)["choose_device_queue"] = lambda _device: pace
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == harm.count:
            for number in harm.signals:
                signal.raise_signal(number)
            if harm.message:
                raise RuntimeError(harm.message)

    methods: dict[str, tuple[type, str]] = {
        "prepare": (StoreWriter, "append"),
        "update": (Updater, "__call__"),
        "validation": (Validator, "__call__"),
    }
    if harm.place in methods:
        kind, name = methods[harm.place]
        call = getattr(kind, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            count()
            return call(*arguments, **options)

        setattr(kind, name, counted)
    saves, write, rename = 0, safetensors.torch.save_file, Path.rename

    def save_file(tensors: Any, path: Path, metadata: Any) -> None:
        nonlocal saves
        saves += path.name == files.MODEL
        if harm.place == "save" and path.name == files.MODEL:
            count()
        if saves in harm.full_saves:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, path, metadata)

    def renamed(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if harm.place == "replaced" and path.name.startswith("step-"):
            count()
        return moved

    if harm.place == "best":
        write_best = files.write_best

        def written(run_dir: Path, name: str | None) -> None:
            count()
            write_best(run_dir, name)

        vars(files)["write_best"] = written
    vars(safetensors.torch)["save_file"] = save_file
    setattr(Path, "rename", renamed)  # noqa: B010 - mypy forbids the plain way


if __name__ == "__main__":
    _serve()
