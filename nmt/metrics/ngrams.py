"""Vectorized n-gram matching, and BLEU and chrF of summed counts.

sacrebleu counts n-grams sentence by sentence with dictionaries. Here an n-gram is one integer, with
the number of its sentence in the high bits, and many sentences are matched at once by sorting.
Scores equal sacrebleu's up to rounding. `pairwise_chrf` and `pairwise_bleu` score each of many
translations of a sentence against each other translation, for minimum Bayes risk decoding.

Shapes: n sentences or texts, M n-gram orders; scores may have any leading shape.

Source: Papineni et al. (2002); Popović (2015); smoothing by Chen and Cherry (2014), method 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from nmt.metrics.metric import Floats
from nmt.text.flat import FlatIds

Ints = npt.NDArray[np.int64]
WordsOf = Callable[[str], Sequence[str]]  # Splits a text into words.
_SENTENCES_AT_ONCE = 512  # sorted keys then fit into the CPU cache
_KEY_BITS = 62
_BETA = 2
CHRF_ORDERS = 6
BLEU_ORDERS = 4
_MOST_CELLS = 1 << 22  # Maximum size of the matrix of counts.


def count_ngrams(lines: FlatIds, max_order: int) -> Floats:
    """Return the number of n-grams of each line and order. (n, M)."""
    lengths = lines.lengths[:, None]
    return np.maximum(lengths - np.arange(max_order), 0.0)


def characters(texts: Iterable[str]) -> FlatIds:
    """Convert texts to the numbers of their characters, without white space."""
    lines = ["".join(text.split()) for text in texts]
    joined = "".join(lines)
    content = joined.encode("utf-32-le", "surrogatepass")
    ids = np.frombuffer(content, "<u4")
    lengths = np.array([len(line) for line in lines], np.int64)
    return FlatIds(ids, lengths)


class WordNumbers:
    """Assigns a number to each distinct word."""

    def __init__(self, words_of: WordsOf) -> None:
        self._words_of = words_of
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def lines(self, texts: Iterable[str]) -> FlatIds:
        """Convert texts to sequences of word numbers."""
        rows = []
        for text in texts:
            words = self._words_of(text)
            rows.append([self._numbers[word] for word in words])
        return FlatIds.of(rows)


def match_counts(hypotheses: FlatIds, references: Sequence[FlatIds], max_order: int) -> Floats:
    """Count clipped n-gram matches of each hypothesis, by order. (n, M).

    The count of an n-gram is clipped to its maximum count over the references of the sentence.

    Args:
        hypotheses: One line for each sentence; the ids are the numbers of characters or words.
        references: One or more streams of lines.
        max_order: Longest n-grams, M.
    """
    sides = [hypotheses, *references]
    num_lines = len(hypotheses.lengths)
    counts = np.zeros((num_lines, max_order))
    for first in range(0, num_lines, _SENTENCES_AT_ONCE):
        last = min(first + _SENTENCES_AT_ONCE, num_lines)
        parts = [side.part(first, last) for side in sides]
        counts[first:last] = _match_part(parts, max_order)
    return counts


def _match_part(sides: Sequence[FlatIds], max_order: int) -> Floats:
    """Count the matches of a part of the sentences. (n, M)."""
    num_lines = len(sides[0].lengths)
    matches = np.zeros((num_lines, max_order))
    lengths = np.concatenate([side.lengths for side in sides])
    borders = np.cumsum([len(side.ids) for side in sides])
    characters_or_words = np.concatenate([side.ids for side in sides])
    _, symbols = np.unique(characters_or_words, return_inverse=True)
    starts = np.arange(len(symbols))
    line_ends = np.cumsum(lengths)
    to_line_end = np.repeat(line_ends, lengths) - starts
    # A key contains the number of the line in its high bits, then the symbols of the n-gram.
    lines = np.arange(num_lines)
    keys = np.repeat(np.tile(lines, len(sides)), lengths)
    symbol_bits = int(symbols.max(initial=0)).bit_length() or 1
    line_bits = num_lines.bit_length()
    gram_bits = 0
    for order in range(max_order):  # an n-gram is a shorter n-gram plus a symbol
        fits = to_line_end[starts] > order
        starts = starts[fits]
        keys = keys[fits]
        if line_bits + gram_bits + symbol_bits > _KEY_BITS:
            values, keys = np.unique(keys, return_inverse=True)
            lines = lines[values >> gram_bits]
            line_bits = len(values).bit_length()
            gram_bits = 0
        keys = (keys << symbol_bits) | symbols[starts + order]
        gram_bits += symbol_bits
        ends = np.searchsorted(starts, borders[:-1])
        hypothesis, *references = np.split(keys, ends)
        grams, counts = np.unique(hypothesis, return_counts=True)
        allowed = np.zeros(len(grams), np.int64)
        for reference in references:
            np.maximum(allowed, _counts_of(grams, reference), out=allowed)
        clipped = np.minimum(counts, allowed)
        lines_of_grams = lines[grams >> gram_bits]
        matches[:, order] = np.bincount(lines_of_grams, clipped, num_lines)
    return matches


def _counts_of(grams: Ints, others: Ints) -> Ints:
    """Return how often each of ``grams`` occurs in ``others``."""
    ordered = np.sort(others)
    starts = np.searchsorted(ordered, grams)
    ends = np.searchsorted(ordered, grams, "right")
    return ends - starts


def bleu(
    lengths: Floats, reference_lengths: Floats, matches: Floats, totals: Floats, *, effective: bool
) -> Floats:
    """Return BLEU, 0 to 100, from summed counts. Any leading shape (...).

    Args:
        lengths: Words of the hypotheses. (...).
        reference_lengths: Words of the references. (...).
        matches: Clipped matches by order. (..., M).
        totals: N-grams of the hypotheses by order. (..., M).
        effective: Whether to ignore n-gram orders that are longer than the hypothesis. Otherwise
            such a hypothesis scores 0.
    """
    exists = totals > 0
    is_missed = exists & (matches == 0)
    factors = np.where(is_missed, 2.0, 1.0)
    smoothing = np.cumprod(factors, axis=-1)
    smoothed = np.where(is_missed, 1 / smoothing, matches)
    divisors = np.where(exists, totals, 1)
    precision = np.where(exists, smoothed / divisors, 1)
    log_precision = np.log(precision).sum(-1)
    is_matched = matches > 0
    is_scored = is_matched.any(-1)
    if effective:
        orders = np.maximum(exists.sum(-1), 1)
    else:
        orders = totals.shape[-1]
        is_scored &= exists.all(-1)
    ratio = reference_lengths / np.maximum(lengths, 1)
    brevity = np.minimum(1 - ratio, 0)
    scores = 100 * np.exp(brevity + log_precision / orders)
    return np.where(is_scored, scores, 0.0)


def chrf(totals: Floats, reference_totals: Floats, matches: Floats) -> Floats:
    """Return chrF2, 0 to 100, from summed counts. (..., M) -> (...).

    Args:
        totals: N-grams of the hypotheses by order.
        reference_totals: N-grams of the references by order.
        matches: Clipped matches by order.
    """
    both = (totals > 0) & (reference_totals > 0)
    orders = np.maximum(both.sum(-1), 1)
    precisions = matches / np.where(both, totals, np.inf)
    recalls = matches / np.where(both, reference_totals, np.inf)
    precision = precisions.sum(-1) / orders
    recall = recalls.sum(-1) / orders
    product = (1 + _BETA**2) * precision * recall
    below = _BETA**2 * precision + recall
    scores = np.zeros_like(below)
    np.divide(product, below, out=scores, where=below > 0)
    return 100 * scores


def pairwise_chrf(texts: Sequence[str]) -> Floats:
    """Return chrF2, 0 to 100, of each text (row) with each text as reference (column). (n, n).

    >>> pairwise_chrf(["a dog", "a dog", "cat"]).round(1)
    array([[100. , 100. ,  10.4],
           [100. , 100. ,  10.4],
           [  8.8,   8.8, 100. ]])
    """
    matches, totals = _matches(characters(texts), CHRF_ORDERS)
    return chrf(totals[:, None], totals[None, :], matches)


def pairwise_bleu(texts: Sequence[str], words: WordsOf) -> Floats:
    """Return BLEU, 0 to 100, of each text (row) with each text as reference (column). (n, n).

    Args:
        texts: The translations.
        words: Splits a text into words.

    >>> pairwise_bleu(["a b c d e", "a b c d f"], str.split).round(1)
    array([[100. ,  66.9],
           [ 66.9, 100. ]])
    """
    lines = WordNumbers(words).lines(texts)
    matches, totals = _matches(lines, BLEU_ORDERS)
    lengths = lines.lengths.astype(np.float64)
    own = lengths[:, None]
    others = lengths[None, :]
    return bleu(own, others, matches, totals[:, None], effective=True)


def _matches(lines: FlatIds, max_order: int) -> tuple[Floats, Floats]:
    """Return clipped matches of each pair of lines, (n, n, M), and n-grams of each line, (n, M)."""
    num_lines = len(lines.lengths)
    _, symbols = np.unique(lines.ids, return_inverse=True)
    starts = np.arange(len(symbols))
    ends = np.cumsum(lines.lengths)
    to_line_end = np.repeat(ends, lines.lengths) - starts
    grams = symbols
    matches = []
    for order in range(max_order):
        if order:  # an n-gram is a shorter n-gram plus a symbol, renumbered
            fits = to_line_end[starts] > order
            starts = starts[fits]
            next_symbols = symbols[starts + order]
            longer = grams[fits] * (len(symbols) + 1) + next_symbols
            _, grams = np.unique(longer, return_inverse=True)
        matches.append(_common(lines.sentences[starts], grams, num_lines))
    return np.stack(matches, axis=-1), count_ngrams(lines, max_order)


def _common(rows: Ints, grams: Ints, num_lines: int) -> Floats:
    """Return the number of common n-grams of each pair of lines: the sum of minimum counts. (n, n).

    The minimum of two counts is computed as the number of integers 1, 2, 3, ... up to both counts.
    """
    common = np.zeros((num_lines, num_lines))
    order = np.argsort(grams, kind="stable")
    rows = rows[order]
    grams = grams[order]
    num_grams = int(grams.max(initial=-1)) + 1
    width = max(1, min(num_grams, _MOST_CELLS // num_lines))
    for first in range(0, num_grams, width):
        begin, end = np.searchsorted(grams, (first, first + width))
        cells = rows[begin:end] * width + grams[begin:end] - first
        counts = np.bincount(cells, minlength=num_lines * width)
        counts = counts.reshape(num_lines, width)
        highest = int(counts.max(initial=0))
        for level in range(1, highest + 1):
            counts = counts[:, (counts >= level).any(axis=0)]
            reached = (counts >= level).astype(np.float32)
            common += reached @ reached.T
    return common
