"""What the guard and confidence go by: measured on the validation set and short lists of a run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from statistics import linear_regression

import numpy as np

from nmt.checkpoint.model_folder import CONFIDENCE, GUARD, write_extra
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.files.progress import progress_bar
from nmt.inference.confidence import fit_confidence
from nmt.inference.guard import (
    SOURCE_COMPRESSION,
    GuardedLine,
    GuardThresholds,
    SourceCoverage,
    compressed_share,
)
from nmt.inference.shortlist_file import ShortlistFile
from nmt.inference.translator import Translator
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.text.tokenizer import load_tokenizers

_MOST_LINES = 5000  # half a second
_MOST_TRANSLATED = 1000
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
_SLOWEST_COMPRESSION = -0.2  # exponent; short lines alone would promise too little of long ones
_SPACE = "\u2581"


def calibrate_guard(run_dir: Path, data: PreparedData) -> None:
    """Write ``guard.json``: the same bytes for the same data, however the training went.

    With the short lists of the run, how much of a source is covered is measured, too, and which
    words the training data nearly always translate. Does nothing if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    chosen = list(islice(zip(data.valid_source, data.valid_target, strict=True), _MOST_LINES))
    if not chosen:
        return
    tokenizers = load_tokenizers(data.tokenizer_dir)
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets)
    coverage = SourceCoverage.load(ShortlistFile(run_dir, tokenizers.vocab_sizes))
    with progress_bar("setting the guard", unit="parts", total=3, leave=False) as bar:
        covered = [coverage.share(*pair) if coverage else 0.0 for pair in zip(*ids, strict=True)]
        bar.update()
        limits = calibrate(map(GuardedLine, sources, targets, *ids, covered))
        bar.update()
        if coverage:
            pieces = [piece for piece, _, _ in tokenizers.source.pieces()]
            candidates = np.asarray(coverage.candidates).tolist()
            limits = replace(limits, expected=expected_translations(data.train, candidates, pieces))
    write_extra(run_dir / GUARD, limits.text().encode())


def calibrate_confidence(run_dir: Path, data: PreparedData, load: Callable[[], Translator]) -> None:
    """Translate the validation set, 1,000 lines at most, and write ``confidence.json``.

    Does nothing if fewer than 100 lines of it have text.

    Args:
        run_dir: Of the run.
        data: Its prepared data.
        load: Returns the trained model.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = [
        pair for pair in zip(data.valid_source, data.valid_target, strict=True) if pair[0].strip()
    ]
    if len(pairs) < _FEWEST_LINES:
        return
    rows = np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_TRANSLATED), dtype=np.int64)
    sources, targets = zip(*(pairs[row] for row in rows.tolist()), strict=True)
    with progress_bar("fitting confidence", unit="lines", total=len(sources), leave=False) as bar:
        results = load().with_progress(bar.update).translate(sources)
    scorer = Scorer("chrf", [targets], MetricOptions())
    scores = scorer.sentence_scores(scorer.statistics([result.text for result in results]))
    kept = [pair for pair in zip(results, scores, strict=True) if pair[0].num_tokens]
    fitted = fit_confidence(*zip(*kept, strict=True))
    write_extra(run_dir / CONFIDENCE, fitted.text().encode())


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
    rows = np.linspace(0, len(store) - 1, min(len(store), _MOST_PAIRS), dtype=np.int64)
    sources, targets = (
        [part.tolist() for part in np.split(ids, offsets[1:-1])]
        for ids, offsets in (store.source_ids(rows), store.target_ids(rows))
    )
    beside: dict[int, list[set[int]]] = defaultdict(list)  # the targets of each word
    for source, target in zip(sources, map(set, targets), strict=True):
        for word in _whole_words(source, pieces):
            beside[word].append(target)
    overall = Counter(chain.from_iterable(map(set, targets)))
    lift = _LEAST_LIFT / len(rows)
    expected = {}
    for word, own in sorted(beside.items()):
        if len(own) >= 1 / _MOST_DROPPED:
            likely = set(candidates[word][:_MOST_EXPECTED])
            counts = Counter(chain.from_iterable(target & likely for target in own))
            chosen = {x for x, count in counts.items() if count / len(own) > lift * overall[x]}
            dropped = sum(chosen.isdisjoint(target) for target in own)
            if (dropped + 1) / (len(own) + 2) <= _MOST_DROPPED:
                expected[pieces[word][1:]] = sorted(chosen)
    return expected


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
    loop = math.floor(_quantile([line.loop for line in chosen], 1 - _TAIL)) + _LOOP_MARGIN
    repetition = _quantile([line.repetition for line in chosen], 1 - _TAIL) + _REPETITION_MARGIN
    covered = _quantile([line.covered for line in chosen], _TAIL)
    characters = _length_limits([line.characters for line in chosen])
    subwords = _length_limits([line.subwords for line in chosen])
    scale, exponent = _compression_curve([line.output for line in chosen])
    return GuardThresholds(
        loop=min(max(loop, _LOOP_MARGIN), _MOST_LOOP),
        repetition=round(min(max(repetition, _REPETITION_MARGIN), _MOST_REPETITION), 4),
        characters_low=characters[0],
        characters_high=characters[1],
        subwords_low=subwords[0],
        subwords_high=subwords[1],
        compression_scale=scale,
        compression_exponent=exponent,
        coverage=round(_COVERAGE_MARGIN * covered, 4),
    )


def _quantile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]


def _length_limits(ratios: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(ratio) for ratio in ratios]
    low, middle, high = (_quantile(logs, share) for share in (_TAIL, 0.5, 1 - _TAIL))
    margin, most = max(_LENGTH_MARGIN * (high - low), math.log(1.2)), math.log(_MOST_LENGTH_FACTOR)
    ends = max(low - margin, middle - most), min(high + margin, middle + most)
    return round(math.exp(ends[0]), 4), round(math.exp(ends[1]), 4)


def _compression_curve(texts: Sequence[str]) -> tuple[float, float]:
    """Fit log share = a + b log bytes by least squares, and lower it below the tail."""
    sizes = [math.log(len(text.encode("utf-8", "replace"))) for text in texts]
    shares = [math.log(compressed_share(text)) for text in texts]
    slope = _SLOWEST_COMPRESSION
    if len(set(sizes)) > 1:
        slope = max(-1.0, min(linear_regression(sizes, shares).slope, slope))
    rests = [share - slope * size for size, share in zip(sizes, shares, strict=True)]
    return round(math.exp(_quantile(rests, _TAIL)) * SOURCE_COMPRESSION, 4), round(slope, 4)
