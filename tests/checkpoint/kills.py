"""A process that saves a checkpoint and kills itself before its N-th disk operation.

Usage: python kills.py FOLDER. Makes FOLDER/STEP/00, 01, ... one run folder for each N, each with a
whole checkpoint of step 1 and what was left of the saving of STEP, which is 1 again or 2. The last
is of a save that came through. One process imports torch, and forks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors.torch import save_file

from nmt.checkpoint import files

MOST = 50


def save(run_dir: Path, step: int, version: str) -> None:
    values = {"weight": torch.full((64,), 1.0 if version == "old" else 2.0)}
    files.save_checkpoint(run_dir, step, model=values, optimizer=values, state={"is": version})
    files.write_best(run_dir, files.checkpoint_name(step))


def kill_before(number: int) -> None:
    """Make the ``number``-th call, from 0, the last thing this process does."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*args, **kwargs)

        return wrapper

    def torn(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None) -> None:
        """Half of the file is on the disk before the rest follows."""
        save_file(tensors, path, metadata)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        finish(path, content)

    finish = counted(Path.write_bytes)
    vars(safetensors.torch)["save_file"] = counted(torn)
    for name in ("fsync", "rename", "replace", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))


def main(folder: Path, step: int) -> None:
    for number in range(MOST):
        run_dir = folder / str(step) / f"{number:02d}"
        save(run_dir, 1, "old")
        child = os.fork()
        if child == 0:
            kill_before(number)
            save(run_dir, step, "new")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return
    sys.exit("no save came through")


if __name__ == "__main__":
    for step in (1, 2):
        main(Path(sys.argv[1]), step)
