"""Scores of lines: what their files may hold, and which pairs have low ones."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.extras.cleaning.scores import read_scores


def test_scores_are_numbers_one_a_line_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "scores.gz"
    path.write_bytes(gzip.compress(b"0.5\n -1e3\nnan\n-inf\n7"))
    values = read_scores(path, 5, is_part=False).tolist()
    assert values[:2] + values[3:] == [0.5, -1000, -math.inf, 7]
    assert math.isnan(values[2])
    assert read_scores(path, 2, is_part=True).tolist() == [0.5, -1000]


def test_what_does_not_fit_the_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    for text, lines, problem in (
        ("1\n2\n", 3, "has 2 scores, but its corpus has 3 lines"),
        ("1\n2\n", 1, "has 2 scores, but its corpus has 1 lines"),
        ("", 1, "has 0 scores"),
        ("1\n\n", 2, "line 2: '' is no number"),
        ("1\nNaN, 3\n", 2, "line 2: 'NaN, 3' is no number"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=problem) as caught:
            read_scores(path, lines, is_part=False)
        assert caught.value.exit_code == 3
