"""Robustness: what is read, what is compared, and what is lost; and contrastive pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.extras.analysis.contrastive import ContrastivePair, contrastive_accuracy, read_pairs
from nmt.extras.analysis.robustness import JOINED, SPLIT, noise_losses, noisy_sources
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.metrics.result import NoiseLoss, System
from nmt.metrics.scoring import Resampling
from nmt.text.noise import NOISES

LINES = [f"Sentence number {n} of a small test set, with words." for n in range(7)]


@given(st.lists(st.text("ab ", max_size=12), min_size=1, max_size=7), st.integers(0, 9))
def test_outputs_fit_the_lines_that_are_scored(lines: list[str], seed: int) -> None:
    for noisy in noisy_sources(lines, " ", seed):
        outputs = noisy.outputs(noisy.lines, " ")
        assert len(outputs) == len(noisy.scored(lines, " "))
        if noisy.noise in (JOINED, SPLIT):  # a copying model loses nothing by them
            assert list(outputs) == list(noisy.scored(lines, " "))


def losses(metrics: Sequence[str] = ("chrf",), resamples: int = 50) -> dict[str, NoiseLoss]:
    """The losses of a system that copies its source."""

    def make(references: Sequence[Sequence[str]]) -> list[Scorer]:
        return [Scorer(metric, references, MetricOptions()) for metric in metrics]

    return {
        found.noise + found.metric: found
        for noisy in noisy_sources(LINES, " ", 1)
        for found in noise_losses(
            System("copy", LINES), noisy, noisy.lines, [LINES], make, " ", Resampling(resamples)
        )
    }


def test_a_copying_system_loses_what_the_noise_changes() -> None:
    found = losses(["chrf", "ter"])
    assert len(found) == 2 * (len(NOISES) + 2)
    assert found["joinedchrf"].loss == found["splitchrf"].loss == 0
    for metric in ("chrf", "ter"):
        loss = found["upper-case" + metric]
        assert loss.confidence is not None
        if metric == "chrf":
            assert loss.loss == pytest.approx(loss.clean - loss.noisy)
            assert loss.confidence.low > 0
        else:
            assert loss.loss == pytest.approx(loss.noisy - loss.clean)
    assert losses(resamples=0)["typoschrf"].confidence is None
    assert losses() == losses()


def test_accuracy_counts_what_is_more_probable_and_no_ties(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tlonger\tx\tlength\nb\ty\tlonger\tlength\nc\tsame\tsame\ttie\nd\tzz\tz\n")
    pairs = read_pairs(path)
    assert pairs[3] == ContrastivePair("d", "zz", "z")
    found = list(contrastive_accuracy("m", pairs, lambda x: [len(target) for _, target in x]))
    assert [(each.category, each.num_correct, each.num_pairs) for each in found] == [
        ("all", 2, 4), ("length", 1, 2), ("tie", 0, 1)
    ]  # fmt: skip
    assert found[0].accuracy == 0.5
    for text in ("", "a\tb\n", "a\t\tc\n", "a\tb\tc\td\te\n"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"pairs\.tsv"):
            read_pairs(path)
