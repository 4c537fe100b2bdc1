"""Where training stands, and the history of its validations."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.loader import Position
from nmt.training.checkpoints import History, Progress
from nmt.training.update import UpdateStats

SCORES = st.lists(st.floats(allow_nan=False), max_size=20)


def history_of(scores: list[float]) -> History:
    return History({10 * number: score for number, score in enumerate(scores, start=1)})


@given(scores=SCORES, patience=st.integers(1, 6))
def test_the_best_is_the_first_of_the_highest_and_patience_counts_from_it(
    scores: list[float], patience: int
) -> None:
    best, since = None, 0
    for number, score in enumerate(scores):
        if best is None or score > scores[best]:
            best, since = number, 0
        else:
            since += 1
    history = history_of(scores)
    assert history.best == (None if best is None else 10 * (best + 1))
    assert history.should_stop(patience) == (bool(scores) and since >= patience)
    assert not history.should_stop(None)


@given(scores=st.lists(st.floats(), max_size=20))
def test_progress_survives_json(scores: list[float]) -> None:
    """FAULT 18."""
    progress = Progress(
        step=7, position=Position(1, 3), timed=(0.5, 70), total_steps=70, loss_sum=1.5
    )
    progress.history = history_of(scores)
    back = Progress.from_dict(json.loads(json.dumps(progress.as_dict())))
    # Compared as text, for NaN is not equal to itself; JSON has no tuples.
    assert back.position == progress.position
    assert repr(replace(back, timed=(0.5, 70))) == repr(progress)


def test_progress_counts_what_is_skipped_in_all_and_in_a_row() -> None:
    progress, counts = Progress(), []
    for nats in (1.0, math.nan, math.inf, 2.0, math.nan):
        progress.add_outcome(UpdateStats([], 0.1, 1, 2, 3, torch.tensor([nats, 0, 0.5])))
        counts.append((progress.skipped, progress.skipped_in_a_row))
    assert counts == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
    assert Progress.from_dict(progress.as_dict()).skipped_in_a_row == 1
