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
_KEY_BITS = 62  # Bits of a key in `_match_chunk`; the keys are signed 64-bit integers.
_BETA = 2  # Of chrF2: recall counts twice as much as precision.
CHRF_ORDERS = 6
BLEU_ORDERS = 4
_MOST_CELLS = 1 << 22  # Maximum size of the matrix of counts in `_count_common`.


def count_ngrams(lines: FlatIds, max_order: int) -> Floats:
    """Return the number of n-grams of each line, for the orders 1 to M. (n, M)."""
    lengths = lines.lengths[:, None]
    # A line of L symbols has L unigrams, L - 1 bigrams, and so on, but never less than 0.
    return np.maximum(lengths - np.arange(max_order), 0.0)


def characters(texts: Iterable[str]) -> FlatIds:
    """Convert each text to the code points of its characters, without white space."""
    compact_texts = ["".join(text.split()) for text in texts]
    joined = "".join(compact_texts)
    # UTF-32 has four bytes for each character: its code point.
    content = joined.encode("utf-32-le", "surrogatepass")
    code_points = np.frombuffer(content, "<u4")
    lengths = np.array([len(text) for text in compact_texts], np.int64)
    return FlatIds(code_points, lengths)


class WordNumbers:
    """Assigns a number to each distinct word."""

    def __init__(self, words_of: WordsOf) -> None:
        self._words_of = words_of
        # Word -> its number. A new word gets the next number: 0, 1, 2, ...
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def lines(self, texts: Iterable[str]) -> FlatIds:
        """Convert each text to the numbers of its words."""
        lines_of_numbers = []
        for text in texts:
            words = self._words_of(text)
            lines_of_numbers.append([self._numbers[word] for word in words])
        return FlatIds.of(lines_of_numbers)


def match_counts(hypotheses: FlatIds, references: Sequence[FlatIds], max_order: int) -> Floats:
    """Count clipped n-gram matches of each hypothesis, by order. (n, M).

    The count of an n-gram is clipped to its maximum count over the references of the sentence.

    Args:
        hypotheses: One line for each sentence; the ids are the numbers of characters or words.
        references: One or more streams of lines.
        max_order: Longest n-grams, M.
    """
    streams = [hypotheses, *references]
    num_lines = len(hypotheses.lengths)
    matches = np.zeros((num_lines, max_order))
    for start in range(0, num_lines, _SENTENCES_AT_ONCE):
        stop = min(start + _SENTENCES_AT_ONCE, num_lines)
        chunk = [stream.part(start, stop) for stream in streams]
        matches[start:stop] = _match_chunk(chunk, max_order)
    return matches


def _match_chunk(streams: Sequence[FlatIds], max_order: int) -> Floats:
    """Count the clipped matches of the lines of a chunk. (n, M).

    Line i of each stream belongs to the same sentence. The symbols (characters or words) of all
    streams are in one array. An n-gram is represented by the position of its first symbol
    (``starts``) and by one integer, its key. The high bits of a key are the number of a prefix, and
    the low ``gram_bits`` bits are the symbols that follow the prefix. In the beginning, the prefix
    is only the line; later it is a line with the first symbols of an n-gram. So equal keys mean
    equal n-grams of the same line, in any stream.

    Args:
        streams: The hypotheses, then each stream of references. All have n lines.
        max_order: Longest n-grams, M.
    """
    num_lines = len(streams[0].lengths)
    matches = np.zeros((num_lines, max_order))
    lengths = np.concatenate([stream.lengths for stream in streams])
    stream_ends = np.cumsum([len(stream.ids) for stream in streams])
    ids = np.concatenate([stream.ids for stream in streams])
    # Renumbered without gaps, the ids need few bits.
    _, symbols = np.unique(ids, return_inverse=True)
    starts = np.arange(len(symbols))  # An n-gram starts at each symbol.
    line_ends = np.cumsum(lengths)
    num_symbols_left = np.repeat(line_ends, lengths) - starts  # in the line, from each position
    line_of_prefix = np.arange(num_lines)
    keys = np.repeat(np.tile(line_of_prefix, len(streams)), lengths)
    symbol_bits = int(symbols.max(initial=0)).bit_length() or 1
    prefix_bits = num_lines.bit_length()
    gram_bits = 0
    # Each round appends a symbol to the n-grams, which have ``order`` symbols before it. N-grams at
    # the end of their line are dropped.
    for order in range(max_order):
        fits = num_symbols_left[starts] > order
        starts = starts[fits]
        keys = keys[fits]
        if prefix_bits + gram_bits + symbol_bits > _KEY_BITS:
            # The keys are full. Each distinct key becomes the number of a longer prefix.
            prefixes, keys = np.unique(keys, return_inverse=True)
            line_of_prefix = line_of_prefix[prefixes >> gram_bits]
            prefix_bits = len(prefixes).bit_length()
            gram_bits = 0
        keys = (keys << symbol_bits) | symbols[starts + order]
        gram_bits += symbol_bits
        # Split the keys by stream.
        borders = np.searchsorted(starts, stream_ends[:-1])
        hypothesis_keys, *keys_of_references = np.split(keys, borders)
        grams, counts = np.unique(hypothesis_keys, return_counts=True)
        max_counts = np.zeros(len(grams), np.int64)  # over the references
        for reference_keys in keys_of_references:
            np.maximum(max_counts, _count_keys(grams, reference_keys), out=max_counts)
        clipped = np.minimum(counts, max_counts)
        line_of_gram = line_of_prefix[grams >> gram_bits]
        # The sum of the clipped counts of each line.
        matches[:, order] = np.bincount(line_of_gram, clipped, num_lines)
    return matches


def _count_keys(distinct_keys: Ints, keys: Ints) -> Ints:
    """Return how often each of ``distinct_keys`` occurs in ``keys``."""
    ordered = np.sort(keys)
    starts = np.searchsorted(ordered, distinct_keys)
    ends = np.searchsorted(ordered, distinct_keys, "right")
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
    # Smoothing: the first order without a match counts as 1/2 match, the second as 1/4, and so on.
    factors = np.where(is_missed, 2.0, 1.0)
    smoothing = np.cumprod(factors, axis=-1)
    smoothed = np.where(is_missed, 1 / smoothing, matches)
    # Orders without n-grams get the precision 1, whose logarithm 0 does not change the sum.
    divisors = np.where(exists, totals, 1)
    precision = np.where(exists, smoothed / divisors, 1)
    sum_of_logs = np.log(precision).sum(-1)
    is_matched = matches > 0
    is_scored = is_matched.any(-1)  # Others score 0.
    if effective:
        num_orders = np.maximum(exists.sum(-1), 1)
    else:
        num_orders = totals.shape[-1]
        is_scored &= exists.all(-1)
    ratio = reference_lengths / np.maximum(lengths, 1)
    log_brevity = np.minimum(1 - ratio, 0)  # Logarithm of the brevity penalty.
    scores = 100 * np.exp(log_brevity + sum_of_logs / num_orders)
    return np.where(is_scored, scores, 0.0)


def chrf(totals: Floats, reference_totals: Floats, matches: Floats) -> Floats:
    """Return chrF2, 0 to 100, from summed counts. (..., M) -> (...).

    Args:
        totals: N-grams of the hypotheses by order.
        reference_totals: N-grams of the references by order.
        matches: Clipped matches by order.
    """
    # Only orders with n-grams on both sides count. Divided by infinity, the others add 0.
    is_counted = (totals > 0) & (reference_totals > 0)
    num_orders = np.maximum(is_counted.sum(-1), 1)
    precisions = matches / np.where(is_counted, totals, np.inf)
    recalls = matches / np.where(is_counted, reference_totals, np.inf)
    precision = precisions.sum(-1) / num_orders
    recall = recalls.sum(-1) / num_orders
    # The F-score, in which recall has beta times the importance of precision.
    numerator = (1 + _BETA**2) * precision * recall
    denominator = _BETA**2 * precision + recall
    scores = np.zeros_like(denominator)
    np.divide(numerator, denominator, out=scores, where=denominator > 0)
    return 100 * scores


def pairwise_chrf(texts: Sequence[str]) -> Floats:
    """Return chrF2, 0 to 100, of each text (row) with each text as reference (column). (n, n).

    >>> pairwise_chrf(["a dog", "a dog", "cat"]).round(1)
    array([[100. , 100. ,  10.4],
           [100. , 100. ,  10.4],
           [  8.8,   8.8, 100. ]])
    """
    matches, totals = _match_pairs(characters(texts), CHRF_ORDERS)
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
    matches, totals = _match_pairs(lines, BLEU_ORDERS)
    lengths = lines.lengths.astype(np.float64)
    hypothesis_lengths = lengths[:, None]
    reference_lengths = lengths[None, :]
    return bleu(hypothesis_lengths, reference_lengths, matches, totals[:, None], effective=True)


def _match_pairs(lines: FlatIds, max_order: int) -> tuple[Floats, Floats]:
    """Compare each line with each line.

    Returns:
        Clipped matches of each pair of lines, by order, (n, n, M); and the number of n-grams of
        each line, by order, (n, M).
    """
    num_lines = len(lines.lengths)
    _, symbols = np.unique(lines.ids, return_inverse=True)
    starts = np.arange(len(symbols))  # Position of the first symbol of each n-gram.
    line_ends = np.cumsum(lines.lengths)
    num_symbols_left = np.repeat(line_ends, lines.lengths) - starts  # in the line
    grams = symbols  # Equal n-grams have the same number.
    matches = []
    for order in range(max_order):
        if order:  # Append a symbol to each n-gram that does not end its line, and renumber.
            fits = num_symbols_left[starts] > order
            starts = starts[fits]
            next_symbols = symbols[starts + order]
            # The factor is above all symbols, so different n-grams get different numbers.
            longer = grams[fits] * (len(symbols) + 1) + next_symbols
            _, grams = np.unique(longer, return_inverse=True)
        matches.append(_count_common(lines.sentences[starts], grams, num_lines))
    return np.stack(matches, axis=-1), count_ngrams(lines, max_order)


def _count_common(line_indices: Ints, grams: Ints, num_lines: int) -> Floats:
    """Return the number of common n-grams of each pair of lines: the sum of minimum counts. (n, n).

    The minimum of two counts is computed as the number of integers 1, 2, 3, ... up to both counts.

    Args:
        line_indices: The line of each n-gram in the text.
        grams: The number of each n-gram in the text, from 0; equal n-grams have the same number.
        num_lines: Number of lines, n.
    """
    common = np.zeros((num_lines, num_lines))
    by_gram = np.argsort(grams, kind="stable")
    line_indices = line_indices[by_gram]
    grams = grams[by_gram]
    num_grams = int(grams.max(initial=-1)) + 1
    # The counts of ``width`` different n-grams in all lines are in memory at once.
    width = max(1, min(num_grams, _MOST_CELLS // num_lines))
    for first_gram in range(0, num_grams, width):
        begin, end = np.searchsorted(grams, (first_gram, first_gram + width))
        # Index in the flat matrix of counts: a row for each line, a column for each n-gram.
        cells = line_indices[begin:end] * width + grams[begin:end] - first_gram
        counts = np.bincount(cells, minlength=num_lines * width)
        counts = counts.reshape(num_lines, width)
        highest = int(counts.max(initial=0))
        for level in range(1, highest + 1):
            # Columns below this level are below all higher levels, too, so they are dropped.
            counts = counts[:, (counts >= level).any(axis=0)]
            reached = (counts >= level).astype(np.float32)
            common += reached @ reached.T
    return common
