"""Sentence scores of every text against every other, as one matrix; pure.

For choosing among many translations of one sentence. The scores are those of sacrebleu's sentence
chrF (Popović 2015) and sentence BLEU (Papineni et al. 2002, smoothed as in Chen and Cherry 2014,
method 3), without comparing one pair at a time: which text has which n-gram how often is a table,
and clipped matches are matrix products of it.

Shapes: n texts, G different n-grams of one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nmt.metrics.ngrams import bleu, chrf
from nmt.metrics.significance import Floats

IntArray = npt.NDArray[np.int64]

_CHRF_ORDERS = 6
_BLEU_ORDERS = 4
_MOST_CELLS = 1 << 22  # Cells of the table held at once.


def pairwise_chrf(texts: Sequence[str]) -> Floats:
    """Return chrF2 of each text (row) with each other text as the reference (column), 0 to 100.

    >>> pairwise_chrf(["a dog", "a dog", "cat"]).round(1)
    array([[100. , 100. ,  10.4],
           [100. , 100. ,  10.4],
           [  8.8,   8.8, 100. ]])
    """
    characters = [np.array([ord(c) for c in "".join(text.split())], np.int64) for text in texts]
    matches, totals = _matches(characters, _CHRF_ORDERS)
    return chrf(totals[:, None], totals[None, :], matches)


def pairwise_bleu(texts: Sequence[str], words: Callable[[str], Sequence[str]]) -> Floats:
    """Return BLEU of each text (row) with each other text as the reference (column), 0 to 100.

    Args:
        texts: The translations.
        words: Cuts a text into what BLEU counts.

    >>> pairwise_bleu(["a b c d e", "a b c d f"], str.split).round(1)
    array([[100. ,  66.9],
           [ 66.9, 100. ]])
    """
    ids: dict[str, int] = {}
    lines = [
        np.array([ids.setdefault(word, len(ids)) for word in words(text)], np.int64)
        for text in texts
    ]
    matches, totals = _matches(lines, _BLEU_ORDERS)
    lengths = np.array([len(line) for line in lines], np.float64)
    return bleu(lengths[:, None], lengths[None, :], matches, totals[:, None], effective=True)


def _matches(lines: Sequence[IntArray], max_order: int) -> tuple[Floats, Floats]:
    """Return clipped matches of each pair (n, n, M), and n-grams of each text (n, M), by order."""
    lengths = np.array([len(line) for line in lines], np.int64)
    rows = np.repeat(np.arange(len(lines)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(lengths.sum())  # to the line's end
    _, symbols = np.unique(np.concatenate(lines), return_inverse=True)
    starts, grams = np.arange(len(symbols)), symbols
    matches, totals = [], []
    for order in range(1, max_order + 1):
        if order > 1:  # an n-gram is a shorter one and a symbol, numbered again
            fits = left[starts] >= order
            starts = starts[fits]
            longer = grams[fits] * (len(symbols) + 1) + symbols[starts + order - 1]
            _, grams = np.unique(longer, return_inverse=True)
        matches.append(_common(rows[starts], grams, len(lines)))
        totals.append(np.bincount(rows[starts], minlength=len(lines)).astype(np.float64))
    return np.stack(matches, axis=-1), np.stack(totals, axis=-1)


def _common(rows: IntArray, grams: IntArray, num_lines: int) -> Floats:
    """Sum over n-grams of the smaller count of each pair of lines. (n, n).

    The smaller of two counts is how many of 1, 2, 3, ... both of them reach.
    """
    found = np.zeros((num_lines, num_lines))
    order = np.argsort(grams, kind="stable")
    rows, grams = rows[order], grams[order]
    num_grams = int(grams[-1]) + 1 if len(grams) else 0
    width = max(1, min(num_grams, _MOST_CELLS // num_lines))
    for first in range(0, num_grams, width):
        part = slice(*np.searchsorted(grams, (first, first + width)))
        cells = rows[part] * width + grams[part] - first
        counts = np.bincount(cells, minlength=num_lines * width).reshape(num_lines, width)
        level = 1
        while (reached := (counts >= level).any(axis=0)).any():
            counts = counts[:, reached]
            both = (counts >= level).astype(np.float32)
            found += both @ both.T
            level += 1
    return found
