"""The validation set -> the thresholds of the guard: what is normal for a language pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nmt.checkpoint.model_folder import GUARD, write_extra
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.text.tokenizer import load_tokenizers
from nmt.translation.guard import (
    SOURCE_COMPRESSION,
    GuardedLine,
    GuardThresholds,
    SourceCoverage,
    characters_sign,
    compressed_share,
    loop_sign,
    repetition_sign,
    subwords_sign,
)

_MOST_LINES = 5000  # half a second
_FEWEST_LINES = 100  # fewer say nothing about rare lines
_TAIL = 0.005
_LOOP_MARGIN, _MOST_LOOP = 1, 8
_REPETITION_MARGIN, _MOST_REPETITION = 0.15, 0.5
_LENGTH_MARGIN = 0.25  # of the distance between both tails
_MOST_LENGTH_FACTOR = 4.0  # beyond the median
_COVERAGE_MARGIN = 0.8
_MOST_PAIRS = 20_000  # a second
_MOST_EXPECTED = 20  # translations of a word
_LEAST_LIFT = 4.0  # how much more often they stand beside the word than elsewhere
_MOST_DROPPED = 0.005  # share of the targets that have none of them
_SPACE = "\u2581"
_SLOWEST_COMPRESSION = -0.2  # exponent; short lines alone would promise too little of long ones


def calibrate_guard(run_dir: Path, data: PreparedData) -> None:
    """Write ``guard.json``: the same bytes for the same data, however the training went.

    With the short lists of the run, how much of a source is covered is measured, too, and which
    words the training data nearly always translate. Does nothing if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = zip(data.valid_source, data.valid_target, strict=True)
    chosen = list(islice(pairs, _MOST_LINES))
    if not chosen:
        return
    tokenizers = load_tokenizers(data.tokenizer_dir)
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets)
    file = ShortlistFile(run_dir, tokenizers.vocab_sizes)
    coverage = SourceCoverage.load(file)
    covered = [coverage.share(*pair) if coverage else 0.0 for pair in zip(*ids, strict=True)]
    limits = calibrate(map(GuardedLine, sources, targets, *ids, covered))
    if file.parts is not None:
        pieces = [piece for piece, _, _ in tokenizers.source.pieces()]
        found = expected_translations(data.train, file.parts.candidates.tolist(), pieces)
        limits = replace(limits, expected=found)
    write_extra(run_dir / GUARD, limits.text().encode())


def expected_translations(
    store: ParallelStore, candidates: Sequence[Sequence[int]], pieces: Sequence[str]
) -> dict[str, list[int]]:
    """Find the words that are nearly always translated by one of a few tokens.

    A word of one source token counts with those of its likeliest translations that stand far more
    often beside it than elsewhere; it is expected to be translated if at most 1 in 200 targets has
    none of them. In free translations few words are so; in technical or simple text most are.

    Args:
        store: Training pairs; a large corpus is represented by some of them.
        candidates: Likely target ids of each source token; -1 where there are fewer.
        pieces: The text of each source id.

    Returns:
        Target ids of each such word.
    """
    rows = np.unique(np.linspace(0, len(store) - 1, _MOST_PAIRS).astype(np.int64))
    pairs = [
        (_whole_words(source, pieces), set(target))
        for source, target in zip(
            _lists(*store.source_ids(rows)), _lists(*store.target_ids(rows)), strict=True
        )
    ]
    counts = Counter(token for words, _ in pairs for token in words)
    overall = Counter(token for _, target in pairs for token in target)
    likely = {
        token: {*candidates[token][:_MOST_EXPECTED]} - {-1}
        for token, count in counts.items()
        if count >= 1 / _MOST_DROPPED
    }
    beside: dict[int, Counter[int]] = {token: Counter() for token in likely}
    for words, target in pairs:
        for token in words & likely.keys():
            beside[token].update(likely[token] & target)
    expected = {
        token: {each for each, number in found.items()
                if number / counts[token] > _LEAST_LIFT * overall[each] / len(pairs)}
        for token, found in beside.items()
    }  # fmt: skip
    dropped = Counter(
        token
        for words, target in pairs
        for token in words & expected.keys()
        if target.isdisjoint(expected[token])
    )
    return {
        pieces[token][1:]: sorted(targets)
        for token, targets in sorted(expected.items())
        if (dropped[token] + 1) / (counts[token] + 2) <= _MOST_DROPPED
    }


def _lists(ids: Any, offsets: Any) -> list[list[int]]:
    flat, ends = ids.tolist(), offsets.tolist()
    return [flat[start:end] for start, end in pairwise(ends)]


def _whole_words(ids: Sequence[int], pieces: Sequence[str]) -> set[int]:
    """Return the tokens that are words by themselves, of letters only."""
    following = [pieces[index] for index in ids[1:]]
    return {
        token
        for token, after in zip(ids, [*following, _SPACE], strict=True)
        if pieces[token][0] == _SPACE and pieces[token][1:].isalpha() and not after[0].isalnum()
    }


def calibrate(lines: Iterable[GuardedLine]) -> GuardThresholds:
    """Find the limits of a language pair from lines and their references.

    Each limit is where a tail of 1 in 200 begins, and a margin beyond; a few bad references do not
    matter, and none can move a limit further than is sensible. Fewer than 100 lines give the
    defaults. The model's own output is not asked: what a bad model often does would be normal then.
    """
    chosen = [line for line in lines if line.source.strip() and line.output.strip()]
    if len(chosen) < _FEWEST_LINES:
        return GuardThresholds()
    loop = math.floor(_quantile([loop_sign(line) for line in chosen], 1 - _TAIL)) + _LOOP_MARGIN
    repetition = (
        _quantile([repetition_sign(line) for line in chosen], 1 - _TAIL) + _REPETITION_MARGIN
    )
    characters = _length_limits([characters_sign(line) for line in chosen])
    subwords = _length_limits([subwords_sign(line) for line in chosen])
    scale, exponent = _compression_curve([line.output for line in chosen])
    return GuardThresholds(
        loop=min(max(loop, _LOOP_MARGIN), _MOST_LOOP),
        repetition=_rounded(min(max(repetition, _REPETITION_MARGIN), _MOST_REPETITION)),
        characters_low=_rounded(characters[0]),
        characters_high=_rounded(characters[1]),
        subwords_low=_rounded(subwords[0]),
        subwords_high=_rounded(subwords[1]),
        compression_scale=_rounded(scale),
        compression_exponent=_rounded(exponent),
        coverage=_rounded(_COVERAGE_MARGIN * _quantile([line.covered for line in chosen], _TAIL)),
    )


def _quantile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]


def _rounded(value: float) -> float:
    return round(value, 4)


def _length_limits(ratios: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(ratio) for ratio in ratios]
    low, middle, high = (_quantile(logs, share) for share in (_TAIL, 0.5, 1 - _TAIL))
    margin, most = max(_LENGTH_MARGIN * (high - low), math.log(1.2)), math.log(_MOST_LENGTH_FACTOR)
    return math.exp(max(low - margin, middle - most)), math.exp(min(high + margin, middle + most))


def _compression_curve(texts: Sequence[str]) -> tuple[float, float]:
    """Fit log share = a + b log bytes by least squares, and lower it below the tail."""
    sizes = [math.log(len(text.encode("utf-8", "replace"))) for text in texts]
    shares = [math.log(compressed_share(text)) for text in texts]
    mean_size, mean_share = (math.fsum(values) / len(values) for values in (sizes, shares))
    spread = math.fsum((size - mean_size) ** 2 for size in sizes)
    slope = _SLOWEST_COMPRESSION
    if spread > 0:
        products = zip(sizes, shares, strict=True)
        slope = math.fsum((s - mean_size) * (y - mean_share) for s, y in products) / spread
    slope = max(-1.0, min(slope, _SLOWEST_COMPRESSION))
    rests = [share - slope * size for size, share in zip(sizes, shares, strict=True)]
    return math.exp(_quantile(rests, _TAIL)) * SOURCE_COMPRESSION, slope
