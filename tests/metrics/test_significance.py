"""Bootstrap resampling: its laws, and sacrebleu's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from nmt.files.lines import read_lines
from nmt.metrics import scoring
from nmt.metrics.metric import Floats, MetricOptions, Scorer
from nmt.metrics.result import System
from nmt.metrics.scoring import (
    Resampling,
    least_p_value,
    randomised_differences,
    resample_scores,
    score_systems,
)


def resampled_means(values: list[float], **options: int) -> Floats:
    """Resample a metric that is simply the mean of one number a sentence."""
    table = np.array(values)[:, None]
    return resample_scores([table], [lambda sums: sums[:, 0] / len(values)], **options)[0]


def exchanged(one: Floats, other: Floats, **options: int) -> Floats:
    return randomised_differences(one, other, lambda sums: sums[:, 0], **options)


def test_memory_is_bounded_by_chunks_that_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (np.random.default_rng(n).integers(0, 9, (17, 1)).astype(float) for n in (1, 2))
    means = resampled_means(one[:, 0].tolist(), resamples=40)
    differences = exchanged(one, other, trials=200)
    monkeypatch.setattr(scoring, "_CHUNK_DRAWS", 50)
    # The draws are the same; the order of summation may not be.
    again = resampled_means(one[:, 0].tolist(), resamples=40)
    assert again == pytest.approx(means, rel=1e-12)
    assert np.array_equal(exchanged(one, other, trials=200), differences)


@given(st.integers(0, 30))
def test_few_different_sentences_show_little(count: int) -> None:
    one = np.zeros((30, 3))
    other = one.copy()
    other[:count, 1] = 1
    assert least_p_value(one, other) == min(1, 2 ** (1 - count))


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_intervals_and_p_values_are_those_of_sacrebleu(
    shared_data: Path, kind: Literal["bs", "ar"]
) -> None:
    names = ("ref.A", "hyp.VolcTrans-GLAT", "hyp.Online-A", "hyp.ICL")
    paths = (shared_data / "wmt_sample" / f"newstest2021.en-de.{name}.de" for name in names)
    reference, *hypotheses = (read_lines(path)[:25] for path in paths)
    base, *systems = map(System, names[1:], hypotheses)
    references = [reference]
    engines = {
        "bleu": BLEU(references=references), "chrf": CHRF(references=references),
        "ter": TER(references=references),
    }  # fmt: skip
    named = [(system.name, system.lines) for system in (base, *systems)]
    _, theirs = PairedTest(named, engines, None, test_type=kind, n_samples=300)()
    scorers = [Scorer(name, references, MetricOptions()) for name in engines]
    scored, scored_base, pairs = score_systems(
        systems, scorers, baseline=base, resampling=Resampling(300, significance=kind, trials=300)
    )
    assert scored_base is not None
    assert pairs is None
    for number, system in enumerate((scored_base, *scored)):
        for score in system.scores:
            expected = theirs[{"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}[score.metric]][number]
            assert not isinstance(expected, str)
            assert score.value == pytest.approx(expected.score, abs=1e-9)
            if kind == "bs" and score.confidence:
                # There the resampled sums are divided in single precision.
                found = (score.confidence.mean, score.confidence.half_width)
                assert found == pytest.approx((expected.mean, expected.ci), abs=1e-5)
            if score.comparison:
                assert score.comparison.p_value == pytest.approx(expected.p_value, abs=1e-12)
