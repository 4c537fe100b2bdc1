"""Runs the user's program that scores a validation: `training.validation.command`."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nmt.errors import DataError

# Variables of a launcher. A program that uses torch would take itself for one of our processes.
_OF_LAUNCHER = re.compile(r"(\w+_)?(RANK|WORLD_SIZE)|(MASTER|TORCHELASTIC)_\w+")
_NUM_SHOWN = 5  # Lines of standard error in a message.


def score_by_program(command: Sequence[str], texts: Mapping[str, Sequence[str]]) -> float:
    """Return the score that a program prints as its last word.

    The program runs in the current directory without a shell and without a time limit.

    Args:
        command: Words of the command. The name of a text in braces is replaced by its file.
        texts: Lines of each text by name.

    Raises:
        DataError: The program cannot be started, fails, or does not print a finite number.
    """
    shown = shlex.join(command)
    environment = {x: os.environ[x] for x in os.environ if not _OF_LAUNCHER.fullmatch(x)}
    with TemporaryDirectory(prefix="nmt-") as folder:
        for name, lines in texts.items():
            path = Path(folder, name)
            path.write_bytes("".join(f"{line}\n" for line in lines).encode())
            command = [word.replace(f"{{{name}}}", str(path)) for word in command]
        options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(command, capture_output=True, check=True, **options)
            score = float(done.stdout.split()[-1])
            if math.isfinite(score):
                return score
            problem = f"printed {score}"
        except OSError as error:
            problem = f"cannot be started: {error}"
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode("utf-8", "replace").strip().splitlines()[-_NUM_SHOWN:]
            problem = "\n    ".join([f"failed with status {error.returncode}:", *last])
        except (IndexError, ValueError):
            problem = "did not print a number as its last word"
    fix = "Correct training.validation.command."
    raise DataError(f"The program `{shown}` {problem}.", fix=fix)
