"""Bars move where somebody watches; elsewhere, long work logs a line a minute."""

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


@pytest.mark.parametrize(
    ("level", "total", "shown"),
    [
        ("INFO", 8, ["2 of 8 lines, 0.03 lines/s, 03:00 left",
                     "4 of 8 lines, 0.03 lines/s, 02:00 left",
                     "6 of 8 lines, 0.03 lines/s, 01:00 left"]),
        ("INFO", None, ["2 lines, 0.03 lines/s, 01:00", "4 lines, 0.03 lines/s, 02:00",
                        "6 lines, 0.03 lines/s, 03:00"]),
        ("WARNING", 8, []),
    ],
)  # fmt: skip
def test_long_work_is_logged_once_a_minute_where_no_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    level: str,
    total: int | None,
    shown: list[str],
) -> None:
    """A bar around it has its own lines, and the mode -q none."""
    caplog.set_level(level, logger="nmt")
    now = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with (
        progress_bar("training", unit="updates"),
        progress_bar("validating", unit="lines", total=total, leave=False) as bar,
    ):
        for _ in range(7):
            now += 30.0
            bar.update()
    assert caplog.messages == [f"validating: {line}" for line in shown]


def test_work_without_a_count_logs_its_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nmt")
    monkeypatch.setattr(progress, "_FOLLOW_SECONDS", 0.01)
    now = 1000.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with progress_bar("learning subwords", leave=False):
        now += 61.0
        end = time.monotonic() + PATIENCE_SECONDS
        while not caplog.messages and time.monotonic() < end:
            time.sleep(0.01)
    assert caplog.messages == ["learning subwords: 01:01"]


def test_a_bar_of_a_long_path_keeps_its_numbers_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/a/folder/with/a/name/that/is/longer/than/the/terminal/train.de"
    description = f"reading {path}"
    with (
        terminal(monkeypatch, columns=60) as frames,
        progress_bar(description, unit="pairs", total=9000) as bar,
    ):
        bar.update(4500)
    last = frames.text.rstrip().split("\r")[-1]
    assert last.startswith("reading /a…")
    assert "train.de" in last
    assert "4500/9000" in last
    assert len(last) <= 60


def test_a_bar_of_a_file_counts_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    for content, count in ((b"", 0), (b"a", 1), (b"a\n", 1), (b"\r\n\nx", 3), (b"a\n\nb", 3)):
        path.write_bytes(gzip.compress(content))
        assert count_lines(path) == count
    with terminal(monkeypatch) as frames, file_bar("scoring", path, unit="lines") as bar:
        bar.update(2)
        bar.update(1)
    assert frames.counts("scoring") == ["0/3", "2/3", "3/3"]


@pytest.mark.parametrize("case", ["no terminal", "quiet", "typed", "read"])
def test_bars_need_a_terminal_that_nobody_types_or_reads_on(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
            stream.isatty = lambda: True  # type: ignore[method-assign]
            monkeypatch.setattr(sys, "stdin" if case == "typed" else "stdout", stream)
        with file_bar("translating", path, unit="lines") as bar:
            bar.update(1)
    assert (frames.text, stream.getvalue()) == ("", "")
