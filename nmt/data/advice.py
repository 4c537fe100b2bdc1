"""The filters that `nmt prepare` recommends, and the number of pairs that they would keep.

The passes describe the reasons of each pair by a number with one bit for each reason, so that pairs
with the same reasons are counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.data import FilterConfig
from nmt.data.filters import REASONS

ReasonSets = npt.NDArray[np.uint32]
_BITS = {reason: 1 << index for index, reason in enumerate(REASONS)}
# Filters that hardly ever find good pairs.
_RELIABLE = (
    "ratio", "copy_of_source", "duplicate", "held_out", "script", "swapped", "mojibake", "markup",
    "misaligned", "scores", "dual_cross_entropy",
)  # fmt: skip
# Filters that find some good pairs in every corpus, such as short sentences that look like another
# language. They are recommended if they find more than this share of the pairs.
_UNSURE = ("language", "url", "punctuation", "repetition")
_FEW = 0.01
# If they find most pairs, the languages of the configuration are wrong, not the pairs.
_OF_LANGUAGES = ("script", "swapped", "language")


def reason_set(reasons: Iterable[str]) -> int:
    """Return a number with the bits of the reasons; reasons that always drop pairs have none."""
    bits = 0
    for reason in reasons:
        bits |= _BITS.get(reason, 0)
    return bits


def recommended_reasons(kept: Mapping[int, int], *, has_copies: bool) -> list[str]:
    """Return the reasons for which pairs are kept, but are usually dropped.

    Args:
        kept: Number of kept pairs by their set of reasons.
        has_copies: Whether the training data contain exact copies of held-out sentences. Without
            them, near copies are only similar sentences, which are usual in a corpus.
    """
    num_kept = sum(kept.values())
    reasons = []
    for reason in (*_RELIABLE, *_UNSURE):
        num_found = num_kept - num_without(kept, [reason])
        is_likely = num_found > 0
        if reason in _UNSURE:
            is_likely = num_found > _FEW * num_kept
        elif reason == "held_out":
            is_likely = has_copies and num_found > 0
        if reason in _OF_LANGUAGES:
            is_likely &= num_found <= num_kept / 2
        if is_likely:
            reasons.append(reason)
    return reasons


def num_without(kept: Mapping[int, int], reasons: Iterable[str]) -> int:
    """Return the number of kept pairs that have none of the reasons."""
    bits = reason_set(reasons)
    return sum(count for pair_reasons, count in kept.items() if not pair_reasons & bits)


def with_drops(config: FilterConfig, reasons: Iterable[str]) -> dict[str, Any]:
    """Return the filters section of a configuration, as far as it is set, with more drops."""
    section = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    defaults = FilterConfig().model_dump(mode="json", exclude_none=True)
    for name, rule in section.items():
        # An action alone is a rule with the default limit.
        if isinstance(rule, dict) and rule == defaults[name] | {"action": rule.get("action")}:
            section[name] = rule["action"]
    for reason in reasons:
        rule = section.get(reason)
        if isinstance(rule, dict):
            rule["action"] = "drop"  # and keeps its limit
        else:
            section[reason] = "drop"
    return section
