"""A finished translation, as token ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One way to translate a sentence."""

    ids: tuple[int, ...]
    """Target ids without BOS and EOS."""
    log_prob: float
    """Natural-log probability of the ids and of EOS."""
    score: float
    """``log_prob`` after length normalisation, and after the coverage penalty if there is one;
    higher is better."""
