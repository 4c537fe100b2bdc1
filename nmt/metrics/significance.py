"""Paired bootstrap resampling (Koehn 2004) on sufficient statistics; pure.

A corpus score is a function of sums over sentences, so a resampled corpus needs no text: drawing
n of n sentences with replacement is a row of counts, and all rows times the table of statistics is
one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345
"""Both are sacrebleu's, so that the numbers are too."""

_CHUNK_DRAWS = 1 << 22
"""Draws held in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """The 95% interval of a score over resampled test sets."""

    mean: float
    """Mean of the resampled scores."""
    half_width: float
    """Half of the distance between ``low`` and ``high``: the number after the plus-minus sign."""
    low: float
    """2.5% of the resampled scores are below."""
    high: float
    """2.5% of the resampled scores are above."""
    resamples: int
    """Resampled test sets."""
    seed: int
    """Seed of the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A system against a baseline on the same sentences."""

    baseline: str
    """Name of the baseline."""
    delta: float
    """Score of the system minus score of the baseline."""
    p_value: float | None
    """How often chance alone makes a difference this large; None without resampling."""
    resamples: int
    """Resampled test sets; 0 if there were none."""
    seed: int
    """Seed of the draws."""


def resample_scores(
    table: Floats,
    score: Callable[[Sequence[float]], float],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> Floats:
    """Scores of test sets drawn from the sentences with replacement.

    Systems with equally many sentences get the same draws for the same seed, so their results
    pair up. The order of draws is sacrebleu's.

    Args:
        table: Statistics of each sentence of one system. (n, D).
        score: Score of a corpus whose statistics sum to the argument. (D,).
        resamples: Number of drawn test sets, at least 1.
        seed: Seed of the draws.

    Returns:
        One score for each drawn test set. (resamples,).
    """
    num_sentences = len(table)
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_DRAWS // num_sentences)
    scores: list[float] = []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        draws = generator.choice(num_sentences, size=(size, num_sentences), replace=True)
        draws += num_sentences * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * num_sentences)
        sums = counts.reshape(size, num_sentences).astype(np.float64) @ table
        scores.extend(score(row) for row in sums.tolist())
    return np.array(scores, dtype=np.float64)


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

    The statistic is that of the Moses script and of sacrebleu's ``--paired-bs``: the absolute
    difference on each resampled test set, centred. It differs in one case: ties count as chance,
    so a system compared with itself gets 1 (there 1 / (R + 1)).

    Args:
        system: Resampled scores of the system. (R,).
        baseline: Resampled scores of the baseline, from the same draws. (R,).
        delta: Difference of the scores on the whole test set; its sign does not matter.

    Returns:
        Above 0, at most 1; below 0.05 is commonly called significant.

    >>> same = np.array([20.0, 21.0, 22.0])
    >>> paired_p_value(same, same, delta=0.0)
    1.0
    """
    differences = np.abs(system - baseline)
    at_least = int(np.count_nonzero(differences - differences.mean() >= abs(delta)))
    return (at_least + 1) / (len(differences) + 1)
