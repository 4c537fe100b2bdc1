"""How much code one line of text passes on its way through ``nmt translate``."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import pytest

import nmt
from nmt.commands import translate as command
from nmt.commands.options import TranslateOptions
from nmt.commands.translate import translate

ROOT = Path(nmt.__file__).parent
LINE = b"der Hund schlaeft\n"


def test_one_line_passes_few_modules(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From when it is read to when its translation is written; the guard searches again."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(ROOT):
            passed.add(path.relative_to(ROOT).as_posix())

    class Lines(io.BytesIO):
        """Two lines, one after the other: the first warms up, the second is watched."""

        given = 0

        def read1(self, _: int | None = None) -> bytes:
            self.given += 1
            if self.given == 2:
                threading.setprofile(note)
                sys.setprofile(note)
            elif self.given == 3:
                sys.setprofile(None)
                threading.setprofile(None)
            return LINE if self.given <= 2 else b""

    monkeypatch.setattr(command, "open_input", lambda _: nullcontext(Lines()))
    output = tmp_path / "out.en"
    translate(
        TranslateOptions(model=runs["plain"], output=output, stream=True, device="cpu", threads=1)
    )
    assert len(output.read_bytes().splitlines()) == 2
    assert "inference/translator.py" in passed
    assert len(passed) <= 14, sorted(passed)
