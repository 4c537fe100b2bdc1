"""When patience ends training, and which checkpoint is the best."""

from __future__ import annotations

import math

import pytest

from nmt.checkpoint.files import ValidationScore
from nmt.training.checkpoints import History, Progress

NAN = math.nan


def history_of(*rows: tuple[float, ...]) -> History:
    """Of a validation every ten updates: score, loss, and whether it is noise."""
    history = History()
    for number, (score, loss, *noise) in enumerate(rows, start=1):
        history[10 * number] = ValidationScore(score, loss, bool(noise))
    return history


FLAT = [(5.0, 3.0), (4.0, 3.0), (5.0, 3.0)]
NOISE = [(0.2, 3.0, 1), (0.1, 3.0, 1), (0.0, 3.0, 1)]


@pytest.mark.parametrize(
    ("rows", "patience", "stops"),
    [
        ([], 1, False),
        (FLAT[:1], 1, False),
        (FLAT, 1, True),
        (FLAT, 2, True),
        (FLAT, 3, False),
        ([*FLAT, (6.0, 3.0)], 1, False),  # a new best
        ([*FLAT, (6.0, 3.0), (5.0, 3.0)], 1, True),
        # The loss falls by 0.6%, or by 0.4%, over the patience.
        ([(5.0, 3.0), (4.0, 2.99), (4.0, 2.982)], 2, False),
        ([(5.0, 3.0), (4.0, 2.99), (4.0, 2.988)], 2, True),
        ([(5.0, 3.0), (4.0, 1.0), (4.0, 1.0)], 2, False),
        ([(5.0, 3.0), (4.0, 1.0), (4.0, 1.0)], 1, True),  # it fell before
        # Noise does not count, nor is it the best.
        (NOISE, 1, False),
        ([*NOISE, *FLAT[:2]], 1, True),
        ([*FLAT[:2], *NOISE], 2, False),
        # A validation without a score is none; a loss that is NaN does not fall.
        ([(5.0, 3.0), (NAN, 3.0), (4.0, 3.0)], 2, False),
        ([(NAN, 3.0)] * 3, 1, False),
        ([(5.0, 3.0), (4.0, NAN)], 1, True),
    ],
)
def test_patience_ends_training_where_nothing_gets_better(
    rows: list[tuple[float, ...]], patience: int, *, stops: bool
) -> None:
    assert history_of(*rows).should_stop(patience, after=0, has_limit=True) == stops


def test_patience_does_not_count_in_the_warm_up() -> None:
    history = history_of(*FLAT)
    assert history.should_stop(2, after=10, has_limit=True)
    assert not history.should_stop(2, after=20, has_limit=True)


def test_noise_counts_where_nothing_else_would_end_training() -> None:
    """And its loss, because its scores say nothing."""
    assert history_of(*NOISE).should_stop(2, after=0, has_limit=False)
    hardly = [(0.2, 3.0, 1), (0.1, 2.999, 1), (0.0, 2.998, 1)]
    assert history_of(*hardly).should_stop(2, after=0, has_limit=False)
    falling = [(0.2, 3.0, 1), (0.1, 2.5, 1), (0.0, 2.0, 1)]
    assert not history_of(*falling).should_stop(2, after=0, has_limit=False)


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([], None),
        ([(NAN, 1.0)], None),
        ([(5.0, 3.0), (6.0, 4.0), (5.5, 2.0)], 20),
        ([(5.0, 3.0), (5.0, 2.0), (5.0, 2.5)], 20),  # of equal scores, the lowest loss
        ([(5.0, 3.0), (5.0, 3.0)], 10),
        ([(0.3, 3.0, 1), (0.1, 2.0, 1), (0.2, 2.5, 1)], 20),  # noise is equal
        ([(9.0, 1.0, 1), (5.0, 3.0)], 20),
        ([(-60.0, 3.0), (-90.0, 2.0, 1)], 10),  # TER, which counts errors
    ],
)
def test_the_best_has_the_highest_score_and_of_equal_ones_the_lowest_loss(
    rows: list[tuple[float, ...]], best: int | None
) -> None:
    assert history_of(*rows).best == best


@pytest.mark.parametrize(
    ("rows", "reason", "text"),
    [
        ([], "budget", "all planned updates are made"),
        (FLAT[:2], "budget", "step 10, with the best BLEU and, of equal ones, the lowest loss"),
        (
            FLAT,
            "patience",
            "the last validations brought no better BLEU (training.patience); the best checkpoint "
            "is step 10, with the best BLEU and, of equal ones, the lowest loss",
        ),
        (NOISE, "budget", "step 10, with the lowest loss, because each BLEU is noise"),
    ],
)
def test_the_end_says_why_and_which_checkpoint_is_best(
    rows: list[tuple[float, ...]], reason: str, text: str
) -> None:
    assert Progress(history=history_of(*rows)).describe_end(reason, "BLEU").endswith(text)
