"""Bootstrap resampling: its laws, and sacrebleu's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from nmt.files.lines import read_lines
from nmt.metrics import significance
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.metrics.significance import (
    Floats,
    confidence_interval,
    least_p_value,
    paired_p_value,
    randomised_differences,
    resample_scores,
)


def resampled_means(values: list[float], **options: int) -> Floats:
    """Resample a metric that is simply the mean of one number a sentence."""
    table = np.array(values)[:, None]
    return resample_scores([table], [lambda sums: sums[:, 0] / len(values)], **options)[0]


NUMBERS = st.lists(st.floats(0, 100), min_size=1, max_size=20)


@given(NUMBERS, st.integers(0, 1000))
def test_the_same_seed_draws_the_same_and_equal_systems_do_not_differ(
    values: list[float], seed: int
) -> None:
    first, second = (resampled_means(values, resamples=50, seed=seed) for _ in range(2))
    assert np.array_equal(first, second)
    table = np.array(values)[:, None]
    assert least_p_value(table, table) == 1.0


@given(NUMBERS)
def test_resampled_scores_stay_within_the_sentences(values: list[float]) -> None:
    samples = resampled_means(values, resamples=50)
    interval = confidence_interval(samples)
    slack = 1e-9
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    assert interval.low - slack <= interval.mean <= interval.high + slack


def test_a_system_that_is_always_better_is_so_significantly_and_by_luck_it_is_not() -> None:
    generator = np.random.default_rng(3)
    base, gain, other = (generator.uniform(*each, 200) for each in ((0, 50), (1, 5), (0, 50)))
    samples = [resampled_means(list(values)) for values in (base, base + gain, other)]
    assert paired_p_value(samples[1], samples[0], delta=float(gain.mean())) < 0.01
    assert paired_p_value(samples[2], samples[0], delta=float((other - base).mean())) > 0.05


def test_memory_is_bounded_by_chunks_that_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(np.random.default_rng(1).uniform(0, 1, 17))
    whole = resampled_means(values, resamples=40)
    monkeypatch.setattr(significance, "_CHUNK_DRAWS", 50)
    # The draws are the same; the order of summation may not be.
    assert resampled_means(values, resamples=40) == pytest.approx(whole, rel=1e-12)


@given(NUMBERS, st.integers(0, 1000))
def test_exchanges_of_outputs_keep_the_sum_and_no_difference_exceeds_the_largest(
    values: list[float], seed: int
) -> None:
    one = np.array(values)[:, None]
    other = np.roll(one, 1, axis=0)
    found = randomised_differences(one, other, lambda sums: sums[:, 0], trials=40, seed=seed)
    assert found.shape == (40,)
    assert found.max() <= np.abs(one - other).sum() + 1e-6
    assert (randomised_differences(one, one, lambda sums: sums[:, 0], trials=40) == 0).all()


def test_exchanges_are_bounded_in_memory_by_chunks_that_change_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (np.random.default_rng(n).integers(0, 9, (17, 1)).astype(float) for n in (1, 2))
    whole = randomised_differences(one, other, lambda sums: sums[:, 0], trials=200)
    monkeypatch.setattr(significance, "_CHUNK_DRAWS", 50)
    again = randomised_differences(one, other, lambda sums: sums[:, 0], trials=200)
    assert np.array_equal(again, whole)


@given(st.integers(0, 30))
def test_few_different_sentences_show_little(count: int) -> None:
    one = np.zeros((30, 3))
    other = one.copy()
    other[:count, 1] = 1
    assert least_p_value(one, other) == min(1, 2 ** (1 - count))


@pytest.fixture(scope="module")
def wmt(shared_data: Path) -> dict[str, list[str]]:
    folder = shared_data / "wmt_sample"
    parts = ("hyp.VolcTrans-GLAT", "hyp.Online-A", "hyp.ICL", "ref.A")
    return {part: read_lines(folder / f"newstest2021.en-de.{part}.de")[:120] for part in parts}


def test_intervals_and_p_values_are_those_of_sacrebleu(wmt: dict[str, list[str]]) -> None:
    names = [name for name in wmt if name.startswith("hyp")]
    engines = {"BLEU": BLEU(references=[wmt["ref.A"]]), "chrF2": CHRF(references=[wmt["ref.A"]])}
    test = PairedTest(
        [(name, wmt[name]) for name in names], engines, None, test_type="bs", n_samples=300
    )
    _, theirs = test()
    p_values = []
    for metric, key in (("bleu", "BLEU"), ("chrf", "chrF2")):
        scorer = Scorer(metric, [wmt["ref.A"]], MetricOptions())
        base = scorer.statistics(wmt[names[0]])
        base_samples = resample_scores([base], [scorer.metric.score], resamples=300)[0]
        for name, expected in zip(names, theirs[key], strict=True):
            assert not isinstance(expected, str)
            ours = scorer.statistics(wmt[name])
            samples = resample_scores([ours], [scorer.metric.score], resamples=300)[0]
            interval = confidence_interval(samples)
            assert scorer.total(ours).value == pytest.approx(expected.score, abs=1e-9)
            # There the resampled sums are divided in single precision.
            assert interval.mean == pytest.approx(expected.mean, abs=1e-5)
            assert interval.half_width == pytest.approx(expected.ci, abs=1e-5)
            if expected.p_value is not None:
                delta = scorer.total(ours).value - scorer.total(base).value
                p_values.append(paired_p_value(samples, base_samples, delta=delta))
                assert p_values[-1] == pytest.approx(expected.p_value, abs=1e-12)
    assert len(p_values) == 4
