"""Realistic faults from outside: kills and a minimal environment.

Most of FAULTS 1 to 21 are in test_resume.py, next to what a run should do without them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nmt.checkpoint.files import list_checkpoints, load_checkpoint
from tests.training.runs import Run, Server, assert_equal
from tests.training.toy import CONFIG

# The arguments of `nmt` follow. The wall clock goes back by an hour whenever it is asked.
CLOCK_GOES_BACK = """
import sys, time
clock = {"now": time.time()}
def back():
    clock["now"] -= 3600
    return clock["now"]
localtime, strftime = time.localtime, time.strftime
time.time = back
time.time_ns = lambda: int(back() * 1e9)
time.localtime = lambda seconds=None: localtime(back() if seconds is None else seconds)
time.strftime = lambda form, moment=None: strftime(form, moment or time.localtime())
from nmt.cli import main
main()
"""


def assert_whole(run: Run) -> None:
    """Every checkpoint that looks finished is, and nothing else is there."""
    for step, folder in list_checkpoints(run.folder):
        assert load_checkpoint(folder).step == step
    assert not [*run.folder.rglob(".*.tmp-*")]
    assert not [*run.folder.rglob(".*.replaced")]


@pytest.mark.long
def test_a_minimal_environment_and_a_clock_set_back_change_nothing(
    server: Server, tmp_path: Path
) -> None:
    """FAULT 26: HOME unset, C locale, no terminal, no input; text stays UTF-8."""
    for path in server.folder.glob("*.??"):
        text = path.read_text().translate(str.maketrans("abc", "äß実"))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    data = {
        "train": [{"source": "@config/train.de", "target": "@config/train.en"}],
        "valid": {"source": "@config/valid.de", "target": "@config/valid.en"},
    }
    config = tmp_path / "ü.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"data": data}))
    usual, poor = Run(server, "usual"), Run(server, "poor")
    usual.config, poor.folder = config, tmp_path / "läufe" / "実験"
    usual.finish(f"--set=prepared_dir={tmp_path}/usual")
    flags = [f"--run-dir={poor.folder}", f"--set=prepared_dir={tmp_path}/größe"]
    result = subprocess.run(
        [sys.executable, "-c", CLOCK_GOES_BACK, "train", str(config), *flags],
        cwd=server.folder,
        env={"LC_ALL": "C", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr.decode()
    assert "läufe/実験: 30 steps; best: step-" in result.stdout.decode("utf-8")
    assert "\r" not in result.stderr.decode("utf-8")
    assert_equal(poor, usual)
    content = (poor.folder / "metrics.jsonl").read_text(encoding="utf-8")
    assert "実" in content
    seconds = [float(number) for number in re.findall(r'"seconds": ([^,}]+)', content)]
    assert all(0 < number < 600 for number in seconds)
    moments = [line[:19] for line in poor.log().splitlines()]
    assert moments == sorted(moments, reverse=True)
