"""Two translation models, one for each direction -> a score of how well they agree on a pair.

Dual conditional cross-entropy (Junczys-Dowmunt 2018, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import ConfigError
from nmt.extras.cleaning.scores import ScorePairs
from nmt.inference.scorer import PairScore, Scorer


def dual_scorer(runs: Sequence[Path], languages: tuple[str, str]) -> ScorePairs:
    """Load two models, and return a function that scores pairs with both.

    Args:
        runs: Run or model folders, one for each direction, in any order.
        languages: Of source and target.

    Raises:
        ConfigError: They are not two, or do not translate between the languages.
        CheckpointError: A model is missing or damaged.
    """
    found = {}
    for run in runs:
        scorer = Scorer.load(run)
        found[scorer.languages] = scorer
    try:
        forward, backward = found[languages], found[languages[::-1]]
    except KeyError as error:
        directions = ", ".join("-".join(each) for each in found)
        raise ConfigError(
            f"`score_with` needs a model from {languages[0]} to {languages[1]} and one back, not "
            f"{directions or 'none'}.",
            fix="Name two run or model folders with a comma between them.",
        ) from error

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        back = backward.score([(target, source) for source, target in pairs])
        return [
            dual_score(_entropy(one), _entropy(other))
            for one, other in zip(forward.score(pairs), back, strict=True)
        ]

    return score


def dual_score(forward: float, backward: float) -> float:
    """Return the score of a pair, from 0 to 1: high if it is likely, and alike in both directions.

    Args:
        forward: Cross-entropy of the target given the source, in nats per token.
        backward: That of the source given the target.

    >>> dual_score(0, 0), dual_score(1, 3) == math.exp(-(2 + 2))
    (1.0, True)
    """
    return math.exp(-(abs(forward - backward) + (forward + backward) / 2))


def _entropy(pair: PairScore) -> float:
    """Return nats per token; not a number for what has none, or is too long for the model."""
    return -pair.log_prob / len(pair.tokens) if pair.tokens else math.nan
