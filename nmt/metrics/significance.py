"""Bootstrap resampling and approximate randomisation on sufficient statistics; pure.

A corpus score is a function of sums over sentences, so a resampled corpus needs no text: drawing
n of n sentences with replacement is a row of counts, and all rows times the table of statistics is
one matrix product. Exchanging the outputs of two systems is a row of zeros and ones.

Source: paired bootstrap as in Koehn (2004), approximate randomisation as in Riezler and Maxwell
(2005); draws, statistics and the order of draws are those of sacrebleu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS

Floats = npt.NDArray[np.float64]

# Paired bootstrap resampling, or approximate randomisation.
Significance: TypeAlias = Literal["bs", "ar"]
# Statistics summed over the sentences of each of R corpora (R, D) -> their scores (R,).
CorpusScore: TypeAlias = Callable[[Floats], Floats]

_CHUNK_DRAWS = 1 << 22  # Draws held in memory at once.
# numpy draws so many truth values at once; chunks of whole multiples give the same ones.
_BITS_AT_ONCE = 32
_SLACK = 1e-9  # Scores so close are equal: the order of a sum changes its last digits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """The 95% interval of a score over resampled test sets."""

    mean: float  # Mean of the resampled scores.
    # Half of the distance between ``low`` and ``high``: the number after the plus-minus sign.
    half_width: float
    low: float  # 2.5% of the resampled scores are below.
    high: float  # 2.5% of the resampled scores are above.
    resamples: int  # Resampled test sets.
    seed: int  # Seed of the draws.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A system against a baseline on the same sentences."""

    baseline: str  # Name of the baseline.
    delta: float  # Score of the system minus score of the baseline.
    # 2.5% of the differences on resampled test sets are below; None without resampling.
    low: float | None = None
    high: float | None = None  # 2.5% of them are above.
    # How often chance alone makes a difference this large; None without resampling.
    p_value: float | None
    significance: Significance = "bs"  # What the p-value comes from.
    # Resampled test sets, or trials of approximate randomisation; 0 if there were none.
    resamples: int
    seed: int  # Seed of the draws.


def resample_scores(
    tables: Sequence[Floats],
    scores: Sequence[CorpusScore],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> list[Floats]:
    """Scores of test sets drawn from the sentences with replacement.

    All tables get the same draws, so results of different systems pair up. The order of draws is
    sacrebleu's.

    Args:
        tables: Statistics of each sentence, of one system under one metric each. (n, D).
        scores: Of each table, the score of a corpus whose statistics sum to the argument.
        resamples: Number of drawn test sets, at least 1.
        seed: Seed of the draws.

    Returns:
        For each table, one score for each drawn test set. (resamples,).
    """
    num_sentences, joined = len(tables[0]), np.hstack(tables)
    ends = np.cumsum([table.shape[1] for table in tables])[:-1]
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_DRAWS // num_sentences)
    found: list[list[Floats]] = [[] for _ in tables]
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        draws = generator.choice(num_sentences, size=(size, num_sentences), replace=True)
        draws += num_sentences * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * num_sentences)
        sums = counts.reshape(size, num_sentences).astype(np.float64) @ joined
        for own, score, part in zip(found, scores, np.split(sums, ends, axis=1), strict=True):
            own.append(score(part))
    return [np.concatenate(own) for own in found]


def randomised_differences(
    system: Floats,
    baseline: Floats,
    score: CorpusScore,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = DEFAULT_SEED,
) -> Floats:
    """Absolute differences of two systems whose outputs are exchanged at random.

    In every trial each sentence's outputs change sides with probability 1/2. The order of draws is
    sacrebleu's.

    Args:
        system: Statistics of each sentence of the system. (n, D).
        baseline: Those of the baseline. (n, D).
        score: Score of a corpus whose statistics sum to the argument. (D,).
        trials: Number of exchanges, at least 1.
        seed: Seed of the draws.

    Returns:
        One difference for each trial. (trials,).
    """
    num_sentences, generator = len(system), np.random.default_rng(seed)
    rows = max(1, _CHUNK_DRAWS // num_sentences // _BITS_AT_ONCE) * _BITS_AT_ONCE
    gain, differences = baseline - system, list[Floats]()
    for start in range(0, trials, rows):
        size = min(rows, trials - start)
        is_exchanged = generator.integers(2, size=(size, num_sentences), dtype=bool)
        moved = is_exchanged.astype(np.float64) @ gain
        differences.append(np.abs(score(system.sum(0) + moved) - score(baseline.sum(0) - moved)))
    return np.concatenate(differences)


def confidence_interval(scores: Floats, *, seed: int = DEFAULT_SEED) -> Confidence:
    """The 95% interval of resampled scores, the way sacrebleu cuts it.

    Args:
        scores: What `resample_scores` returned. (R,).
        seed: The seed it was given, for the record.
    """
    ordered = np.sort(scores)
    cut = len(ordered) // 40
    low, high = float(ordered[cut]), float(ordered[len(ordered) - cut - 1])
    return Confidence(
        mean=float(ordered.mean()),
        half_width=(high - low) / 2,
        low=low,
        high=high,
        resamples=len(ordered),
        seed=seed,
    )


def paired_p_value(system: Floats, baseline: Floats, *, delta: float) -> float:
    """How often resampling alone makes a difference as large as ``delta``.

    The statistic is that of the Moses script and of sacrebleu's paired bootstrap: the absolute
    difference on each resampled test set, centred.

    Args:
        system: Resampled scores of the system. (R,).
        baseline: Resampled scores of the baseline, from the same draws. (R,).
        delta: Difference of the scores on the whole test set; its sign does not matter.

    Returns:
        Above 0, at most 1; below 0.05 is commonly called significant. See `least_p_value`, too.

    >>> paired_p_value(np.array([20.0, 21.0, 22.0]), np.array([20.0, 22.0, 20.0]), delta=-0.5)
    0.5
    """
    differences = np.abs(system - baseline)
    return share_of_chance(differences - differences.mean(), delta=delta)


def share_of_chance(differences: Floats, *, delta: float) -> float:
    """How many differences that chance made are larger than ``delta``; ties are not, as there.

    Args:
        differences: What chance made. (R,).
        delta: Difference of the scores on the whole test set; its sign does not matter.
    """
    larger = int(np.count_nonzero(differences > abs(delta) + _SLACK))
    return (larger + 1) / (len(differences) + 1)


def least_p_value(system: Floats, baseline: Floats) -> float:
    """The least p-value that this many different sentences can have, at most 1.

    Of the 2^k exchanges of two systems that differ on k sentences, at least 2 make a difference as
    large. So no p-value below 2^(1-k) means anything, though both tests give one: 1 / (R + 1) for
    equal systems, which get 1 here. From k = 15 on it is below what 10,000 trials can show.

    Args:
        system: Statistics of each sentence of the system. (n, D).
        baseline: Those of the baseline. (n, D).
    """
    num_different = int(np.count_nonzero((system != baseline).any(axis=1)))
    return min(1.0, 2.0 ** (1 - num_different))
