"""Kill and resume a short training, and compare the result with an uninterrupted training.

    python scripts/prove_resume.py CONFIG [--kills 5] [--updates 60] [flags of nmt train]

Both trainings run in separate processes and temporary folders. Kills come at random moments, half
of them while a checkpoint is being written. The weights, the optimizer state and metrics.jsonl must
be byte-identical, except for times in metrics.jsonl.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nmt.checkpoint.files import MODEL, OPTIMIZER, checkpoint_dir, checkpoints_dir
from nmt.files.json_file import sha256_of_file

MOST_STARTS = 100


def command(options: argparse.Namespace, flags: Sequence[str], run_dir: Path) -> list[str]:
    """Return the training command, which fails if anything but a kill interrupts it."""
    save_every = max(1, options.updates // 8)
    rare = {
        "max_steps": options.updates,
        "save_every": save_every,
        "keep_last": 3,
        "validate_every": 2 * save_every,
        "log_every": 1,
        "patience": "null",
        "max_minutes": "null",
        "max_epochs": "null",
        "average_last": "null",
    }
    settings = [f"--set=training.{key}={value}" for key, value in rare.items()]
    words = [sys.executable, "-m", "nmt", "train", options.config, *flags, *settings]
    words.append(f"--run-dir={run_dir}")
    return [*words, "--quiet", "--exact", "--strict-resume"]


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the complete lines of ``metrics.jsonl``, without times."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    *complete, _ = path.read_text(encoding="utf-8").split("\n")
    lines = []
    for text in complete:
        values = json.loads(text)
        timeless = {key: value for key, value in values.items() if "second" not in key}
        lines.append(timeless)
    return lines


def is_saving(run_dir: Path) -> bool:
    """Return whether a checkpoint is being written, which still has a temporary name."""
    folder = checkpoints_dir(run_dir)
    if not folder.is_dir():
        return False
    return any(path.name.startswith(".") for path in folder.iterdir())


def train_with_kills(words: Sequence[str], run_dir: Path, targets: Sequence[int]) -> list[int]:
    """Train to the end, with a kill after each step of ``targets``; return the steps of the kills.

    Args:
        words: The training command.
        run_dir: The run folder.
        targets: Earliest step of each kill.
    """
    killed_at = list[int]()
    for start in range(MOST_STARTS):
        left = targets[len(killed_at) :]
        at_save = start % 2 == 1
        step = 0
        with subprocess.Popen(words) as process:
            # `metrics` also returns lines of earlier processes, until this one goes beyond them.
            while process.poll() is None:
                steps = [line["step"] for line in metrics(run_dir)]
                step = max(steps, default=0)
                is_due = left and step >= left[0]
                if is_due and (is_saving(run_dir) or not at_save):
                    time.sleep(random.uniform(0, 0.05))
                    process.kill()
                    break
                time.sleep(0.001)
        if process.returncode >= 0:
            assert process.returncode == 0, f"training failed with exit code {process.returncode}"
            return killed_at
        killed_at.append(step)
    raise AssertionError(f"training did not finish in {MOST_STARTS} starts")


def main() -> None:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--kills", type=int, default=5, help="number of kills")
    parser.add_argument("--updates", type=int, default=60, help="length of the training")
    options, flags = parser.parse_known_args()
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        killed = Path(folder) / "killed"
        subprocess.run(command(options, flags, whole), check=True)
        steps = range(1, options.updates - options.updates // 8)
        targets = sorted(random.sample(steps, options.kills))
        killed_at = train_with_kills(command(options, flags, killed), killed, targets)
        for name in (MODEL, OPTIMIZER):
            expected = sha256_of_file(checkpoint_dir(whole, options.updates) / name)
            resumed = sha256_of_file(checkpoint_dir(killed, options.updates) / name)
            print(f"{name}: {expected} {resumed}")
            assert expected == resumed, f"{name} differs: please report it"
        assert metrics(whole) == metrics(killed), "metrics.jsonl differs: please report it"
    print(f"equal: {options.updates} updates, killed at steps {', '.join(map(str, killed_at))}")


if __name__ == "__main__":
    main()
