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

MAX_STARTS = 100


def command(options: argparse.Namespace, flags: Sequence[str], run_dir: Path) -> list[str]:
    """Return the training command, which fails if anything but a kill interrupts it."""
    save_every = max(1, options.updates // 8)
    training = {
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
    settings = [f"--set=training.{key}={value}" for key, value in training.items()]
    arguments = [sys.executable, "-m", "nmt", "train", options.config, *flags, *settings]
    arguments.append(f"--run-dir={run_dir}")
    return [*arguments, "--quiet", "--exact", "--strict-resume"]


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines of ``metrics.jsonl``, without times."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    # After the last line feed, there is nothing, or a line that is being written.
    *complete_lines, _ = path.read_text(encoding="utf-8").split("\n")
    records = []
    for line in complete_lines:
        record = json.loads(line)
        without_times = {key: value for key, value in record.items() if "second" not in key}
        records.append(without_times)
    return records


def is_saving(run_dir: Path) -> bool:
    """Return whether a checkpoint is being written, which still has a temporary name."""
    folder = checkpoints_dir(run_dir)
    if not folder.is_dir():
        return False
    return any(path.name.startswith(".") for path in folder.iterdir())


def train_with_kills(
    arguments: Sequence[str], run_dir: Path, kill_steps: Sequence[int]
) -> list[int]:
    """Train to the end, and kill the training several times; return the steps of the kills.

    Args:
        arguments: The training command.
        run_dir: The run folder.
        kill_steps: Earliest step of each kill, in rising order.
    """
    killed_at = list[int]()
    for start in range(MAX_STARTS):
        steps_left = kill_steps[len(killed_at) :]
        waits_for_save = start % 2 == 1  # Every second kill comes while a checkpoint is written.
        last_step = 0
        with subprocess.Popen(arguments) as process:
            # `metrics` also returns lines of earlier processes, until this one goes beyond them.
            while process.poll() is None:
                steps = [record["step"] for record in metrics(run_dir)]
                last_step = max(steps, default=0)
                is_due = steps_left and last_step >= steps_left[0]
                if is_due and (is_saving(run_dir) or not waits_for_save):
                    time.sleep(random.uniform(0, 0.05))
                    process.kill()
                    break
                time.sleep(0.001)
        if process.returncode >= 0:  # Negative if a signal ended the process.
            assert process.returncode == 0, f"training failed with exit code {process.returncode}"
            return killed_at
        killed_at.append(last_step)
    raise AssertionError(f"training did not finish in {MAX_STARTS} starts")


def main() -> None:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--kills", type=int, default=5, help="number of kills")
    parser.add_argument("--updates", type=int, default=60, help="length of the training")
    options, flags = parser.parse_known_args()
    with TemporaryDirectory() as folder:
        whole_dir = Path(folder) / "whole"
        killed_dir = Path(folder) / "killed"
        subprocess.run(command(options, flags, whole_dir), check=True)
        # Not in the last eighth: after the last checkpoint, a kill may come too late.
        steps = range(1, options.updates - options.updates // 8)
        kill_steps = sorted(random.sample(steps, options.kills))
        killed_at = train_with_kills(command(options, flags, killed_dir), killed_dir, kill_steps)
        for name in (MODEL, OPTIMIZER):
            expected = sha256_of_file(checkpoint_dir(whole_dir, options.updates) / name)
            resumed = sha256_of_file(checkpoint_dir(killed_dir, options.updates) / name)
            print(f"{name}: {expected} {resumed}")
            assert expected == resumed, f"{name} differs: please report it"
        assert metrics(whole_dir) == metrics(killed_dir), "metrics.jsonl differs: please report it"
    print(f"equal: {options.updates} updates, killed at steps {', '.join(map(str, killed_at))}")


if __name__ == "__main__":
    main()
