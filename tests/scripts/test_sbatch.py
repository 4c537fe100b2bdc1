"""The Slurm script starts one training on all nodes, and requeues it before its time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.process import started

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.sbatch"
TOOLS = {
    "scontrol": """
echo "scontrol $*" >> "$LOG"
[ "$1" = show ] && printf 'node1\\nnode2\\n'
exit 0
""",
    "srun": """
trap 'echo saved >> "$LOG"; exit 1' TERM
echo "srun $*" >> "$LOG"
[ -n "$CODE" ] && exit "$CODE"
for _ in $(seq 600); do sleep 0.05; done
""",
}
"""The first answers; the second is a training that ends with a code, or saves at SIGTERM."""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    for name, body in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/bash{body}")
        (tmp_path / name).chmod(0o755)
    place = {"NODELIST": "node[1-2]", "ID": "77"}
    variables = {f"SLURM_JOB_{name}": value for name, value in place.items()}
    variables |= {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8", "CODE": ""}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **variables, "LOG": str(tmp_path / "log"), "PATH": path}


@pytest.mark.parametrize("code", [0, 4])
def test_all_nodes_run_one_training_with_the_exit_code(job: dict[str, str], code: int) -> None:
    command = ["bash", str(SCRIPT), "configs/base.yaml", "--set", "name=two words"]
    done = subprocess.run(command, env=job | {"CODE": str(code)}, check=False, timeout=20)
    assert done.returncode == code
    asked, started = Path(job["LOG"]).read_text().splitlines()
    assert asked == "scontrol show hostnames node[1-2]"
    assert started == (
        "srun --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id 77 "
        "--rdzv-backend c10d --rdzv-endpoint node1:29500 -m nmt train configs/base.yaml "
        "--set name=two words"
    )


def test_before_the_time_limit_the_job_saves_and_requeues(job: dict[str, str]) -> None:
    log = Path(job["LOG"])
    with started(["bash", SCRIPT, "configs/base.yaml"], env=job) as process:
        while process.poll() is None and not (log.exists() and "srun" in log.read_text()):
            time.sleep(0.01)
        time.sleep(0.2)  # until the script waits
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 0
    assert log.read_text().splitlines()[2:] == ["saved", "scontrol requeue 77"]
