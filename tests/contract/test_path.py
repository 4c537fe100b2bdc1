"""How much code one batch passes on its way through ``nmt train``, and one line in translate."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import nmt
from nmt.cli.app import app
from nmt.commands import translate as command
from nmt.commands.options import TranslateOptions
from nmt.data.loader import Loader
from tests.training.toy import CONFIG, write_corpus

ROOT = Path(nmt.__file__).parent
WATCHED = 7  # an update after which nothing is reported, validated or saved
LINE = b"der Hund schlaeft\n"


def noting(passed: set[str]) -> Callable[[FrameType, str, object], None]:
    """What notes each module of ours that is called in, for `sys.setprofile`."""

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(ROOT):
            passed.add(path.relative_to(ROOT).as_posix())

    return note


def test_one_batch_passes_few_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when the loader begins to make it to when the loader is asked for the next one."""
    write_corpus(tmp_path)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    passed, updates = set[str](), Loader.updates

    def watched(loader: Loader, *start: Any) -> Iterator[Any]:
        made = updates(loader, *start)
        try:
            for number in range(1, 1000):
                sys.setprofile(noting(passed) if number == WATCHED else None)
                yield next(made)
        finally:
            made.close()

    monkeypatch.setattr(Loader, "updates", watched)
    flags = ["--set=training.max_steps=8", "--run-dir=run"]
    result = CliRunner().invoke(app, ["train", str(path), *flags])
    assert result.exit_code == 0, result.output
    assert {"commands/train.py", "data/loader.py", "training/optimizer.py"} <= passed
    assert len(passed) <= 17, sorted(passed)


def test_one_line_passes_few_modules(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From when it is read to when its translation is written; the guard searches again."""
    passed = set[str]()

    class Lines(io.BytesIO):
        """Two lines, one after the other: the first warms up, the second is watched."""

        given = 0

        def read1(self, _: int | None = None) -> bytes:
            self.given += 1
            if self.given in (2, 3):
                note = noting(passed) if self.given == 2 else None
                threading.setprofile(note)
                sys.setprofile(note)
            return LINE if self.given <= 2 else b""

    monkeypatch.setattr(command, "open_input", lambda _: nullcontext(Lines()))
    place: Any = {"model": runs["plain"], "output": tmp_path / "out.en", "device": "cpu"}
    command.translate(TranslateOptions(stream=True, threads=1, **place))
    assert len(place["output"].read_bytes().splitlines()) == 2
    assert "inference/translator.py" in passed
    assert len(passed) <= 18, sorted(passed)
