"""Faults from outside, as real as they can be had: kills, a full disk, a poor environment.

Most of FAULTS 1 to 21 are in test_resume.py, next to what a run should do without them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from nmt.checkpoint.files import (
    checkpoint_dir,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from nmt.errors import CheckpointError
from tests.training.runs import Run, Server, assert_equal
from tests.training.toy import CONFIG

DISK_BYTES = 16 << 20


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


class Disk:
    """A small disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, leave_bytes: int) -> None:
        """Let something else take the space."""
        status = os.statvfs(self.folder)
        free = status.f_bavail * status.f_frsize
        with self._filler.open("ab") as file:
            file.write(bytes(max(free - leave_bytes, 0)))

    def free(self) -> None:
        """Take it away again."""
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to mount a tmpfs: {error}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=60)


def assert_whole(run: Run) -> None:
    """Every checkpoint that looks finished is, and nothing else is there."""
    for step, folder in list_checkpoints(run.folder):
        assert load_checkpoint(folder).step == step
    assert not [*run.folder.rglob(".*.tmp-*")]
    assert not [*run.folder.rglob(".*.replaced")]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_disk_that_fills_up_in_a_save_leaves_nothing_half_written(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """FAULT 8: the space that seemed free is not, as under a quota."""
    values = {"weight": torch.arange(2**18, dtype=torch.float32)}  # 1 MiB, saved twice
    run_dir = disk.folder / "run"
    before = save_checkpoint(run_dir, 1, model=values, optimizer=values, state={"a": 1})
    disk.fill(int(share * 2 * 2**20))
    seeming = SimpleNamespace(free=2**40)
    monkeypatch.setattr("shutil.disk_usage", lambda _: seeming)
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(run_dir, 2, model=values, optimizer=values, state={"a": 1})
    assert "step-00000002 was not written: " in caught.value.problem
    assert "o space left on" in caught.value.problem
    assert caught.value.fix.startswith("Free disk space")
    assert [*before.parent.iterdir()] == [before]
    assert torch.equal(load_checkpoint(before).model["weight"], values["weight"])
    disk.free()
    save_checkpoint(run_dir, 2, model=values, optimizer=values, state={"a": 1})
    assert newest_checkpoint(run_dir, strict=True) == checkpoint_dir(run_dir, 2)


def test_a_poor_environment_and_a_clock_that_goes_back_change_nothing(
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
