"""Scores every sentence pair by its words, and finds misaligned ranges of lines.

The steps are:

1. Sentence lengths suggest where the target lines are shifted (`first_offsets`).
2. A bilingual lexicon is learned from the lines at these offsets.
3. The lexicon scores every line. Ranges of lines with low scores are searched for the offset that
   fits best (`find_ranges`).
4. The lexicon is learned again, at the new offsets and without lines that are probably wrong, until
   the offsets stop changing.

The translation of source line i is target line i + offset.

Shapes: n lines of a corpus or of a part of a corpus.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Lexicon, Pairs, learn_lexicon, sample_step
from nmt.data.store import Lines, Mask, ParallelStore, Rows, StoredSide
from nmt.data.workers import HERE, Workers
from nmt.extras.cleaning.evidence import (
    Evidence,
    PairMeasures,
    PairScorer,
    Values,
    share_above,
    usual_scores,
)
from nmt.extras.cleaning.ranges import (
    Offsets,
    Range,
    find_ranges,
    first_offsets,
    is_odd,
    joined,
)
from nmt.extras.cleaning.scores import Column, Scores
from nmt.files.progress import progress_bar
from nmt.text.flat import FlatIds

_ROUNDS = 4
_AGREED = 0.01  # Iteration stops when fewer than this share of the lines change.
_PART = 1 << 19
_MOST_SAMPLED = 1 << 20
_HELD_OUT = 16  # One in 16 pairs is kept out of the lexicon, to measure the lexicon.
SMALLEST = 100
FEWEST_SCORED = 200  # Minimum lines of a corpus for z-scores.
_FEWEST_UNRELATED = 1000  # Minimum lines of a corpus for reporting unrelated ranges.
_FEWEST_UNSEEN = 30
_SAMPLE = 4000
_FAR = 200
_DOUBTFUL = -3.5  # Lines with a lower z-score are not used to learn the next lexicon.
MOST_TOKENS = 64


@dataclass(frozen=True)
class Alignment:
    """Alignment scores and misaligned ranges of each corpus, by the name of the corpus."""

    # Log-likelihood ratio of each line, in nats per token: its tokens as translations of each other
    # against their overall frequencies. NaN if a side is blank or unreadable.
    scores: Mapping[str, Scores] = field(default_factory=dict)
    # The same score, normalized for length, as a number of standard deviations above the typical
    # score of the corpus. NaN if unknown.
    z_scores: Mapping[str, Scores] = field(default_factory=dict)
    # Misaligned ranges. Corpora below 100 lines have none; below 1,000 lines, only shifted ranges.
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    lexicon: Lexicon | None = None  # the lexicon of the last iteration


class _Diagnosis(NamedTuple):
    """Misaligned ranges and scores of a part of a corpus, computed with one lexicon."""

    ranges: list[Range]
    scores: Values  # As in `Alignment`. (n,).
    z_scores: Values  # As in `Alignment`. (n,).
    # Lines that the next lexicon must not learn from at the same offset, because a pair that the
    # lexicon has learned from scores better, even if it is wrong. (n,).
    is_doubtful: Mask


def align_corpora(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    spans: Mapping[str, tuple[int, int]],
    folder: Path,
    held_out: Container[str] = (),
    workers: Workers = HERE,
) -> Alignment:
    """Score all pairs and find misaligned ranges.

    Args:
        lines: The lines of all corpora, usually truncated by `CutLines`.
        vocab_sizes: Sizes of the source and of the target vocabulary.
        spans: First row of each corpus, and the row after its last row.
        folder: Folder for the scores and other large arrays. The caller removes the folder.
        held_out: Names of corpora that are scored, but not used to learn the lexicon.
        workers: Processes that score batches of lines.
    """
    num = len(lines.source.lengths)
    offsets = np.zeros(num, np.int16)
    to_learn = np.zeros(num, bool)
    scores = {}
    z_scores = {}
    for number, (name, (start, end)) in enumerate(spans.items()):
        size = end - start
        path = folder / f"score-{number}.bin"
        scores[name] = Column(path, np.float32, size)
        path = folder / f"z-{number}.bin"
        z_scores[name] = Column(path, np.float32, size)
        if name not in held_out:
            for low, high in _parts(start, end):
                offsets[low:high] = first_offsets(lines, low, high)
            to_learn[start:end] = True
    ranges: dict[str, list[Range]] = {}
    lexicon: Lexicon | None = None
    saved = folder if workers.see_files else None
    with progress_bar("comparing words", leave=False):
        for _ in range(_ROUNDS):
            sample = _sample(lines, offsets, to_learn, spans)
            lexicon = learn_lexicon(lines, vocab_sizes, sample, workers=workers, folder=saved)
            scorer = PairScorer(lexicon, sample, workers)
            ranges = {name: [] for name in spans}
            num_changed = 0
            for name, (start, end) in spans.items():
                for low, high in _parts(start, end):
                    learned = offsets[low:high]
                    diagnosis = _diagnose(scorer, np.arange(low, high), learned)
                    before = low - start
                    place = slice(before, high - start)
                    scores[name][place] = diagnosis.scores
                    z_scores[name][place] = diagnosis.z_scores
                    ranges[name] += (part.moved(before) for part in diagnosis.ranges)
                    if name not in held_out:
                        new_offsets, teaches = _next_sample(diagnosis, learned)
                        is_changed = new_offsets != learned
                        is_changed |= teaches != to_learn[low:high]
                        num_changed += int(is_changed.sum())
                        offsets[low:high] = new_offsets
                        to_learn[low:high] = teaches
            if num_changed <= _AGREED * num:
                break
    merged = {name: joined(of_corpus) for name, of_corpus in ranges.items()}
    if lexicon is not None:
        # Drop the large table of the previous iteration: only scoring needed it.
        lexicon = replace(lexicon, previous_table=None)
    return Alignment(scores, z_scores, merged, lexicon)


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each part of a corpus that fits into memory, and the row after it."""
    # A short rest belongs to the last part.
    cuts = range(start, max(end - _PART // 2, start + 1), _PART)
    borders = [*cuts, end]
    return pairwise(borders)


def _sample(
    lines: Lines, offsets: Offsets, to_learn: Mask, spans: Mapping[str, tuple[int, int]]
) -> Pairs:
    """Return the pairs to learn the lexicon from: of a large corpus, an evenly spaced sample."""
    num = len(offsets)
    least = math.ceil(num / _MOST_SAMPLED)
    step = max(sample_step(lines, num), least)
    pairs = [np.empty((2, 0), np.int64)]
    for low, high in spans.values():
        rows = np.arange(low, high, step)
        targets = rows + offsets[rows]
        is_sampled = to_learn[rows]
        is_sampled &= targets >= low
        is_sampled &= targets < high
        is_sampled &= ~_is_held_out(rows)
        sampled = rows[is_sampled], targets[is_sampled]
        pairs.append(np.stack(sampled))
    sources, targets = np.concatenate(pairs, axis=1)
    return Pairs(sources, targets)


def _is_held_out(rows: Rows) -> Mask:
    return rows % _HELD_OUT == 0


def _diagnose(scorer: PairScorer, rows: Rows, learned: Offsets) -> _Diagnosis:
    """Find misaligned ranges and compute scores for a part of a corpus.

    Args:
        scorer: Scores pairs of lines with the lexicon.
        rows: The rows of the part. (n,).
        learned: Offset of the target line from which the lexicon has learned. (n,).
    """
    lines = scorer.lexicon.lines
    num = len(rows)
    pairs = Pairs(rows, rows)
    in_place = scorer.score(pairs)
    unshifted = PairMeasures.of_pairs(in_place, lines, pairs)
    is_blank = unshifted.tokens == 0
    per_token = in_place / np.maximum(unshifted.tokens, 1)
    per_token[is_blank] = np.nan
    unknown = np.full(num, np.nan)
    nothing = _Diagnosis([], per_token, unknown, np.zeros(num, bool))
    if num < SMALLEST:
        return nothing
    random_pairs = _random_pairs(rows)
    random_totals = scorer.score(random_pairs)
    at_random = PairMeasures.of_pairs(random_totals, lines, random_pairs)
    targets = (rows + learned).clip(rows[0], rows[-1])
    totals = in_place.copy()
    is_moved = targets != rows
    moved = Pairs(rows[is_moved], targets[is_moved])
    totals[is_moved] = scorer.score(moved)
    pairs = Pairs(rows, targets)
    shifted = PairMeasures.of_pairs(totals, lines, pairs)
    has_words = shifted.tokens > 0
    unseen = _is_held_out(rows) & has_words
    if unseen.sum() < _FEWEST_UNSEEN:
        unseen = has_words
    evidence = Evidence.of(shifted.part(unseen), at_random)
    if evidence.is_missing():
        if num < _FEWEST_UNRELATED:
            return nothing
        unrelated = Range(1, num, None)
        return nothing._replace(ranges=[unrelated])
    there = evidence(shifted)
    here = evidence(unshifted)
    here = np.where(learned == 0, there, here)
    ranges = list(find_ranges(scorer, evidence, rows, learned, here, there))
    if num < _FEWEST_UNRELATED:  # too few lines to decide that lines are unrelated
        ranges = [part for part in ranges if part.offset is not None]
    if num < FEWEST_SCORED or not evidence.slope:
        return nothing._replace(ranges=ranges)
    # Pairs that the lexicon has learned from score better, so the share comes from unseen pairs.
    scores = shifted.scores
    share_right = share_above(scores[unseen], at_random.scores)
    usual, spread = usual_scores(scores[has_words], share_right)
    z_scores = (unshifted.scores - usual) / spread
    z_scores[is_blank] = np.nan
    if num < _FEWEST_UNRELATED:
        return nothing._replace(ranges=ranges, z_scores=z_scores)
    is_doubtful = scores < usual + _DOUBTFUL * spread
    is_doubtful |= is_odd(there)
    is_doubtful &= has_words
    return _Diagnosis(ranges, per_token, z_scores, is_doubtful)


def _random_pairs(rows: Rows) -> Pairs:
    """Return random pairs of lines that are far apart. The same rows always give the same pairs."""
    num = len(rows)
    generator = np.random.default_rng(num)
    size = min(_SAMPLE, num)
    far = min(_FAR, num // 3)
    sources = generator.integers(0, num, size)
    distances = generator.integers(far, num - far, size)
    targets = (sources + distances) % num
    return Pairs(rows[sources], rows[targets])


def _next_sample(diagnosis: _Diagnosis, learned: Offsets) -> tuple[Offsets, Mask]:
    """Return the new offset of each line, and whether the next lexicon learns from the line."""
    offsets = np.zeros_like(learned)
    teaches = np.ones_like(learned, bool)
    for part in diagnosis.ranges:
        place = slice(part.start - 1, part.end)
        offsets[place] = part.offset or 0
        teaches[place] = part.offset is not None
    is_doubtful = diagnosis.is_doubtful & (offsets == learned)
    return offsets, teaches & ~is_doubtful


class CutLines:
    """The lines of a token store, each truncated to `MOST_TOKENS` tokens.

    Only the lengths are held in memory, in two bytes per pair.
    """

    def __init__(self, store: ParallelStore) -> None:
        self._store = store
        self.source = _CutSide(store.source)
        self.target = _CutSide(store.target)

    def __reduce__(self) -> tuple[Any, ...]:
        return CutLines, (self._store,)


class _CutSide:
    def __init__(self, side: StoredSide) -> None:
        self._side = side
        self.lengths = _CutLengths(side.lengths)

    def ids(self, rows: Rows) -> FlatIds:
        """Return the ids of ``rows``, of each sentence at most `MOST_TOKENS`."""
        flat = self._side.ids(rows)
        longest = flat.lengths.max(initial=0)
        if longest <= MOST_TOKENS:
            return flat
        starts = flat.offsets[flat.sentences]
        positions = np.arange(len(flat.ids)) - starts
        is_kept = positions < MOST_TOKENS
        lengths = np.minimum(flat.lengths, MOST_TOKENS)
        return FlatIds(flat.ids[is_kept], lengths)


class _CutLengths:
    def __init__(self, lengths: npt.NDArray[np.integer]) -> None:
        cut = np.minimum(lengths, MOST_TOKENS)
        self._values = cut.astype(np.uint8)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any, /) -> npt.NDArray[np.int32]:
        values = self._values[rows]
        return values.astype(np.int32)
