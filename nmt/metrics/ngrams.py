"""Clipped n-gram matches of many sentences at once, and the BLEU and chrF of their sums; pure.

What sacrebleu computes sentence by sentence with dictionaries is computed here for a thousand
sentences by sorting: an n-gram of a sentence is one integer, whose high bits are the sentence.
Scores are equal to sacrebleu's up to rounding.

Shapes: n sentences, M n-gram orders; any leading shape for scores.

Source: Papineni et al. (2002); Popović (2015); smoothing by Chen and Cherry (2014), method 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.metrics.significance import Floats

Ints = npt.NDArray[np.int64]

_SENTENCES_AT_ONCE = 512  # so that what is sorted stays in the cache of a core
_KEY_BITS = 62
_BETA = 2


class Lines(NamedTuple):
    """Lines as numbers: one for each character or word, equal where these are equal."""

    symbols: npt.NDArray[np.integer]  # Of all lines, one after the other.
    lengths: Ints  # Symbols of each line. (n,).

    def totals(self, max_order: int) -> Floats:
        """Return the number of n-grams of each line, by order. (n, M)."""
        counts: Floats = np.maximum(self.lengths[:, None] - np.arange(max_order), 0.0)
        return counts


def characters(texts: Iterable[str]) -> Lines:
    """Return texts as characters, without white space."""
    lines = ["".join(text.split()) for text in texts]
    symbols = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), "<u4")
    return Lines(symbols, np.array([len(line) for line in lines], np.int64))


def match_counts(hypotheses: Lines, references: Sequence[Lines], max_order: int) -> Floats:
    """Return how many n-grams of each hypothesis a reference has, by order. (n, M).

    An n-gram counts at most as often as the reference has it that has it most often.
    """
    sides = [hypotheses, *references]
    num_lines = len(hypotheses.lengths)
    found = np.zeros((num_lines, max_order))
    ends = [np.concatenate([[0], np.cumsum(side.lengths)]) for side in sides]
    for first in range(0, num_lines, _SENTENCES_AT_ONCE):
        last = min(first + _SENTENCES_AT_ONCE, num_lines)
        parts = [
            Lines(side.symbols[end[first] : end[last]], side.lengths[first:last])
            for side, end in zip(sides, ends, strict=True)
        ]
        _match_part(parts, found[first:last])
    return found


def _match_part(sides: Sequence[Lines], found: Floats) -> None:
    """Count the matches of a few sentences. ``found``: (n, M)."""
    num_lines, max_order = found.shape
    lengths = np.concatenate([side.lengths for side in sides])
    borders = np.cumsum([len(side.symbols) for side in sides])
    symbols = _renumbered(np.concatenate([side.symbols for side in sides]))
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(symbols))  # to the line's end
    lines, width = np.arange(num_lines), int(symbols.max(initial=0)).bit_length() or 1
    keys = np.repeat(np.tile(lines, len(sides)), lengths)
    starts, shift, used = np.arange(len(symbols)), 0, num_lines.bit_length()
    for order in range(max_order):  # an n-gram is a shorter one and a symbol
        fits = left[starts] > order
        starts, keys = starts[fits], keys[fits]
        if used + width > _KEY_BITS:
            values, keys = np.unique(keys, return_inverse=True)
            lines, shift, used = lines[values >> shift], 0, len(values).bit_length()
        keys = (keys << width) | symbols[starts + order]
        shift, used = shift + width, used + width
        own, *others = np.split(keys, np.searchsorted(starts, borders[:-1]))
        grams, counts = np.unique(own, return_counts=True)
        allowed = np.zeros(len(grams), np.int64)
        for other in others:
            np.maximum(allowed, _counts_of(grams, other), out=allowed)
        matches = np.minimum(counts, allowed)
        found[:, order] = np.bincount(lines[grams >> shift], matches, num_lines)


def _counts_of(grams: Ints, others: Ints) -> Ints:
    """Return how often each of some n-grams is among others."""
    values, counts = np.unique(others, return_counts=True)
    if not len(values):
        return np.zeros(len(grams), np.int64)
    places = np.minimum(np.searchsorted(values, grams), len(values) - 1)
    return np.where(values[places] == grams, counts[places], 0)


def _renumbered(symbols: npt.NDArray[np.integer]) -> Ints:
    """Number symbols from 0 without gaps."""
    is_there = np.zeros(int(symbols.max(initial=0)) + 1, bool)
    is_there[symbols] = True
    return (np.cumsum(is_there) - 1)[symbols]


def bleu(
    lengths: Floats, reference_lengths: Floats, matches: Floats, totals: Floats, *, effective: bool
) -> Floats:
    """Return BLEU, 0 to 100, of sums of counts.

    Args:
        lengths: Words of the hypotheses. (...).
        reference_lengths: Words of the references. (...).
        matches: Clipped matches by order. (..., M).
        totals: N-grams of the hypotheses by order. (..., M).
        effective: Leave orders out that a short hypothesis does not have; otherwise it scores 0.
    """
    exists = totals > 0
    is_missed = exists & (matches == 0)
    smoothing = np.cumprod(np.where(is_missed, 2.0, 1.0), axis=-1)
    counted = np.where(is_missed, 1 / smoothing, matches)
    log_precision = np.log(np.where(exists, counted / np.where(exists, totals, 1), 1))
    orders = np.maximum(exists.sum(-1), 1) if effective else totals.shape[-1]
    is_scored = (matches > 0).any(-1) & (effective | exists.all(-1))
    brevity = np.minimum(1 - reference_lengths / np.maximum(lengths, 1), 0)
    scores = 100 * np.exp(brevity + log_precision.sum(-1) / orders)
    return np.where(is_scored, scores, 0.0)


def chrf(totals: Floats, reference_totals: Floats, matches: Floats) -> Floats:
    """Return chrF2, 0 to 100, of sums of counts. (..., M) -> (...).

    Args:
        totals: N-grams of the hypotheses by order.
        reference_totals: Those of the references.
        matches: Clipped matches.
    """
    both = (totals > 0) & (reference_totals > 0)
    orders = np.maximum(both.sum(-1), 1)
    precision = (matches / np.where(both, totals, np.inf)).sum(-1) / orders
    recall = (matches / np.where(both, reference_totals, np.inf)).sum(-1) / orders
    below = _BETA**2 * precision + recall
    product = (1 + _BETA**2) * precision * recall
    return 100 * np.divide(product, below, out=np.zeros_like(below), where=below > 0)
