"""Bars move where somebody watches, and are silent elsewhere."""

from __future__ import annotations

import gzip
import io
import logging
import sys
import time
from pathlib import Path

import pytest

from nmt.files import progress
from nmt.files.lines import count_lines
from nmt.files.progress import file_bar, follow, progress_bar
from tests.terminal import terminal

PATIENCE_SECONDS = 20


def test_a_bar_follows_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training reports every few hundred updates."""
    monkeypatch.setattr(progress, "_FOLLOW_SECONDS", 0.01)
    number = 0
    with terminal(monkeypatch) as frames, progress_bar("training", unit="updates", total=7) as bar:
        follow(bar, lambda: number)
        end = time.monotonic() + PATIENCE_SECONDS
        for number in (3, 5):
            while f"{number}/7" not in frames.text and time.monotonic() < end:
                time.sleep(0.01)
    assert frames.counts("training") == ["0/7", "3/7", "5/7"]


@pytest.mark.parametrize(("logged", "num_lines"), [(True, 3), (False, 0)])
def test_long_work_is_logged_with_an_estimate_where_no_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    logged: bool,
    num_lines: int,
) -> None:
    """Every half minute, so nothing of short work."""
    caplog.set_level("INFO", logger="nmt")
    now = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with progress_bar("validating", unit="lines", total=8, logged=logged, leave=False) as bar:
        for _ in range(7):
            now += 15.0
            bar.update()
    lines = [f"validating: {done} of 8 lines, {left} left" for done, left in
             ((2, "01:30"), (4, "01:00"), (6, "00:30"))]  # fmt: skip
    assert caplog.messages == lines[:num_lines]


def test_a_bar_of_a_file_counts_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    for content, count in ((b"", 0), (b"a", 1), (b"a\n", 1), (b"\r\n\nx", 3), (b"a\n\nb", 3)):
        path.write_bytes(gzip.compress(content))
        assert count_lines(path) == count
    with terminal(monkeypatch) as frames, file_bar("scoring", path, unit="lines") as bar:
        bar.update(2)
        bar.update(1)
    assert frames.counts("scoring") == ["0/3", "2/3", "3/3"]


@pytest.mark.parametrize("case", ["no terminal", "quiet", "standard input"])
def test_bars_need_a_terminal(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("a\n")
    with terminal(monkeypatch) as frames:
        stream = io.StringIO()
        if case == "no terminal":
            monkeypatch.setattr(sys, "stderr", stream)
        elif case == "quiet":
            logging.getLogger("nmt").setLevel(logging.WARNING)
        else:
            path = Path("-")
        with file_bar("translating", path, unit="lines") as bar:
            bar.update(1)
    assert (frames.text, stream.getvalue()) == ("", "")
