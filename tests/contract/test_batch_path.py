"""How much code one batch passes on its way through ``nmt train``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import nmt
from nmt.cli.app import app
from nmt.data.loader import Loader
from tests.training.toy import CONFIG, write_corpus

ROOT = Path(nmt.__file__).parent
WATCHED = 7  # an update after which nothing is reported, validated or saved


def test_one_batch_passes_few_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when the loader begins to make it to when the loader is asked for the next one."""
    write_corpus(tmp_path)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = Path(frame.f_code.co_filename)
        if event == "call" and name.is_relative_to(ROOT):
            passed.add(name.relative_to(ROOT).as_posix())

    updates = Loader.updates

    def watched(loader: Loader, *start: Any) -> Iterator[Any]:
        made = updates(loader, *start)
        try:
            for number in range(1, 1000):
                sys.setprofile(note if number == WATCHED else None)
                yield next(made)
        finally:
            made.close()

    monkeypatch.setattr(Loader, "updates", watched)
    flags = ["--set=training.max_steps=8", "--run-dir=run"]
    result = CliRunner().invoke(app, ["train", str(path), *flags])

    assert result.exit_code == 0, result.output
    assert {"commands/train.py", "data/loader.py", "training/optimizer.py"} <= passed
    assert len(passed) <= 16, sorted(passed)
