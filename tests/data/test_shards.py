"""What a killed preparation has done is not done again, unless it is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nmt.commands import prepare as recipe
from nmt.data import passes
from nmt.data.blocks import Look
from nmt.data.corpus import read_blocks
from nmt.data.lines import Encode
from nmt.data.prepared import MANIFEST, REPORT
from tests.commands.test_prepare import config_for
from tests.data.test_cluster import prepared

_SIZE = 13
_BLOCKS = 10  # of 120 pairs: 9 whole ones and a rest


def run(folder: Path, *, kill_at: int | None = None, **changes: Any) -> Counter[str]:
    """Prepare small blocks, and count those that are made; perhaps be killed at one of them."""
    made = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Look, Encode):
            patch.setattr(kind, "__call__", _counted(made, kind.__call__, kill_at))
        patch.setattr(passes, "BLOCK_PAIRS", _SIZE)
        patch.setattr(passes, "read_blocks", partial(read_blocks, size=_SIZE))
        recipe.prepare(config_for(folder, **changes), force=True)
    return made


def _counted(
    made: Counter[str], make: Callable[..., Any], kill_at: int | None
) -> Callable[..., Any]:
    def counted(self: Look | Encode, task: Any) -> Any:
        if self.corpus == "numbers":
            made[type(self).__name__] += 1
            if made.total() == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return make(self, task)

    return counted


def stop_late(folder: Path) -> list[Path]:
    """Do all the work, fail at the end, and return the shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "_report_text", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(folder)
    return sorted((folder / ".prepared.work").glob("*.shard"))


def files(folder: Path) -> dict[Path, bytes]:
    """Content of what is made, but of files that hold times."""
    found = [path for path in (folder / "prepared").rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found if path.name not in (REPORT, MANIFEST)}


@pytest.mark.parametrize(
    ("kill_at", "again"), [(6, {"Look": 5, "Encode": 10}), (14, {"Look": 1, "Encode": 7})]
)
def test_after_a_kill_only_what_is_missing_is_made(
    tmp_path: Path, kill_at: int, again: dict[str, int]
) -> None:
    prepared(tmp_path)  # some pairs are blank, marked up or repeated
    whole = files(tmp_path)
    code = (
        f"import tests.data.test_shards as t; t.run(t.Path({str(tmp_path)!r}), kill_at={kill_at})"
    )
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=place)
    assert killed.returncode == -signal.SIGKILL

    assert run(tmp_path) == again
    assert not (tmp_path / ".prepared.work").exists()
    assert files(tmp_path) == whole


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_shard_is_made_again_and_named(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(tmp_path)
    whole, shards = files(tmp_path), stop_late(tmp_path)
    assert len(shards) == 2 * (_BLOCKS - 1)
    victim = shards[-3]  # of the second pass
    content = victim.read_bytes()
    middle = len(content) // 2
    other = bytes([content[middle] ^ 1])
    changed = content[:middle] + other + content[middle + 1 :]
    victim.write_bytes({"cut": content[:-1], "changed": changed, "empty": b""}[damage])

    assert run(tmp_path) == {"Look": 2, "Encode": 1}
    assert f"{victim} was damaged, and has been made again" in caplog.text
    assert files(tmp_path) == whole


def test_shards_of_other_text_or_another_configuration_are_not_taken(tmp_path: Path) -> None:
    prepared(tmp_path)
    stop_late(tmp_path)
    source = tmp_path / "train.de"
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[30] = "eins zwei drei\n"
    source.write_text("".join(lines), encoding="utf-8")
    assert run(tmp_path)["Look"] == 2  # the block of the line, and the rest

    stop_late(tmp_path)
    assert run(tmp_path, filters={"markup": "off"}) == {"Look": _BLOCKS, "Encode": _BLOCKS}
