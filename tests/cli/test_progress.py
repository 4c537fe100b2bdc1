"""What somebody sees on a terminal while commands work, batch by batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nmt.commands.evaluate import evaluate
from nmt.commands.options import EvaluateOptions, ScoreOptions, TranslateOptions
from nmt.commands.score import score
from nmt.commands.translate import translate
from nmt.errors import DataError
from tests.inference.conftest import sentences
from tests.terminal import Frames, terminal

PLACE: dict[str, Any] = {"device": "cpu", "threads": 1}
LOADING: dict[str, Any] = {**PLACE, "engine": "torch"}
LINES = ["", *sentences(7, seed=4, longest=8), " "]
COUNTS = [f"{number}/9" for number in range(2, 10)]
"""Both blank lines at once, then each line is a batch by itself."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def options_of(run: Path, source: Path, **options: Any) -> TranslateOptions:
    output = source.with_name("out.txt")
    return TranslateOptions(model=run, input=source, output=output, **LOADING, **options)


def assert_complete(frames: Frames) -> None:
    last = re.split(r"[\r\n]+", frames.text.strip())[-1]
    assert re.search(r"9/9 \[\d\d:\d\d<\d\d:\d\d, +[\d.?]+ (lines|pairs)/s\]", last), last


@pytest.mark.parametrize(("stream", "columns"), [(False, 120), (True, 120), (False, 0)])
def test_translate_shows_each_batch(
    runs: dict[str, Path], source: Path, stream: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a terminal that does not know its size."""
    output = source.with_name("out.txt")
    with terminal(monkeypatch, columns=columns) as frames:
        translate(options_of(runs["plain"], source, batch_tokens=1, stream=stream))
    assert len(output.read_text().splitlines()) == 9
    assert frames.counts("translating") == ["0/9", *(["1/9"] if stream else []), *COUNTS]
    assert not re.search(r"(?<!\d)0\.00", frames.text)  # no frame before the lines are counted
    assert_complete(frames)


def test_lines_with_errors_leave_the_count_right(
    runs: dict[str, Path], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_text('{"source": "a"}\n' * 8 + "no JSON\n")
    options = options_of(runs["plain"], source, format="json", input_format="json")
    with terminal(monkeypatch) as frames, pytest.raises(DataError, match="Line 9"):
        translate(options)
    assert frames.counts("translating")[-1] == "9/9"


def test_score_and_evaluate_show_each_batch(
    runs: dict[str, Path], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out")
    asked: dict[str, Any] = {"resamples": 0, "batch_tokens": 1, **LOADING}
    model = runs["plain"]
    with terminal(monkeypatch) as frames:
        score(ScoreOptions(model=model, source=source, target=source, output=out, **PLACE))
        evaluate(EvaluateOptions(models=(model,), source=source, reference=(source,), **asked))
    assert frames.counts("scoring") == ["0/9", "7/9", "9/9"]
    assert frames.counts("translating") == ["0/9", *COUNTS]
    assert_complete(frames)
