"""Runs `nmt train` many times at the price of one import of torch.

A server process imports everything and forks a child for each command line. The child may hurt
itself at a chosen moment: see `Harm`. Started as ``python runs.py``; a request is one JSON line.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Harm:
    """What happens to the process, and when."""

    place: str = ""
    """``prepare``, ``update``, ``validation`` or ``save``: at the start of the ``count``-th,
    from 1. ``replaced``: when a checkpoint has lost its name, to be removed or replaced."""
    count: int = 0
    signals: tuple[int, ...] = ()
    """Sent to itself there."""
    kill_after: float | None = None
    """Or: SIGKILL after so many seconds."""
    full_saves: tuple[int, ...] = ()
    """These saves, from 1, find a full disk."""


@dataclass(frozen=True)
class Result:
    """How the process ended."""

    code: int
    """Exit code, or minus the signal's number."""
    seconds: float
    stderr: str = field(repr=False)
    stdout: str = field(repr=False)


class Server:
    """Forks trainings; a context manager. All run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
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
        self._process.communicate(timeout=60)

    def train(self, config: Path, *flags: str, harm: Harm | None = None) -> Result:
        """Run ``nmt train`` to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"arguments": ["train", str(config), *flags], "harm": asdict(harm or Harm())}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Result(**json.loads(self._process.stdout.readline()))


def _serve() -> None:
    # A shell lets what it starts in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("nmt.recipes.train", "nmt.cli.app", "jinja2"):  # once, for all children
        importlib.import_module(name)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        outputs = [Path(f"{number}.{name}").absolute() for name in ("stdout", "stderr")]
        for path in outputs:
            path.touch()  # a child that is killed at once opens none
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(request["arguments"], Harm(**request["harm"]), outputs)
        if (delay := request["harm"]["kill_after"]) is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)  # a child that has ended waits for its parent
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stdout, stderr = (path.read_text() for path in outputs)
        seconds = time.monotonic() - begin
        print(json.dumps(asdict(Result(code, seconds, stderr, stdout))), flush=True)  # noqa: T201


def _run(arguments: list[str], harm: Harm, outputs: list[Path]) -> None:
    """Be ``nmt``; never returns."""
    from nmt.cli import main

    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    _arm(harm)
    sys.argv = ["nmt", *arguments]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Counter:
    """Sends the signals at the right call."""

    def __init__(self, harm: Harm) -> None:
        self._harm = harm
        self._calls = 0

    def count(self) -> None:
        self._calls += 1
        if self._calls == self._harm.count:
            for number in self._harm.signals:
                signal.raise_signal(number)

    def before(self, kind: type, name: str) -> None:
        """Count the calls of a method, from now on."""
        call = getattr(kind, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count()
            return call(*arguments, **options)

        setattr(kind, name, counted)


def _arm(harm: Harm) -> None:
    import safetensors.torch

    from nmt.checkpoint import files
    from nmt.data.store import StoreWriter
    from nmt.training.update import Updater
    from nmt.training.validation import Validator

    counter = _Counter(harm)
    methods: dict[str, tuple[type, str]] = {
        "prepare": (StoreWriter, "append"),
        "update": (Updater, "__call__"),
        "validation": (Validator, "__call__"),
    }
    if harm.place in methods:
        counter.before(*methods[harm.place])
    saves, write = 0, safetensors.torch.save_file

    def save_file(tensors: Any, path: Path) -> None:
        nonlocal saves
        saves += path.name == files.MODEL
        if harm.place == "save" and path.name == files.MODEL:
            counter.count()
        if saves in harm.full_saves:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, path)

    vars(safetensors.torch)["save_file"] = save_file
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if harm.place == "replaced" and path.name.startswith("step-"):
            counter.count()
        return moved

    vars(files)["Path"].rename = renamed


if __name__ == "__main__":
    _serve()
