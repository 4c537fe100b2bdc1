"""Keep a sentence pair, or say why not. Pure."""

from __future__ import annotations

from nmt.config.data import FilterConfig

BLANK = "blank on both sides"
BLANK_SOURCE = "blank source"
BLANK_TARGET = "blank target"
TOO_LONG = "too many subwords"
TOO_SHORT = "too few subwords"
RATIO = "length ratio"
DUPLICATE = "repeats an earlier pair"

_SHORT_PAIR_ALLOWANCE = 3


def text_problem(source: str, target: str) -> str | None:
    """Return why a pair of texts cannot be used, or None."""
    has_source, has_target = bool(source.strip()), bool(target.strip())
    if has_source and has_target:
        return None
    if not has_source and not has_target:
        return BLANK
    return BLANK_TARGET if has_source else BLANK_SOURCE


def length_problem(source_length: int, target_length: int, config: FilterConfig) -> str | None:
    """Return why a pair of these many subwords is dropped, or None.

    >>> length_problem(2, 9, FilterConfig()) is None  # (9 + 3) / (2 + 3) = 2.4
    True
    >>> length_problem(2, 30, FilterConfig())
    'length ratio'
    """
    shorter, longer = sorted((source_length, target_length))
    if longer > config.max_length:
        return TOO_LONG
    if shorter < config.min_length:
        return TOO_SHORT
    ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
    return RATIO if ratio > config.max_length_ratio else None
