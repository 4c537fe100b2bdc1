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
from nmt.data.store import Lines, LineSide, Mask, Rows
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
    joined,
    weak_mask,
)
from nmt.extras.cleaning.scores import Column, Scores
from nmt.files.progress import progress_bar
from nmt.text.flat import FlatIds

_MAX_ITERATIONS = 4
# Iteration stops when at most this share of the lines changes its offset or its part in learning.
_MAX_CHANGED = 0.01
_LINES_AT_ONCE = 1 << 19  # Approximate lines of the parts into which a large corpus is cut.
_MAX_SAMPLED = 1 << 20  # Maximum number of pairs from which a lexicon is learned.
_HELD_OUT = 16  # One in 16 pairs is kept out of the lexicon, to measure the lexicon.
FEWEST_ALIGNED = 100  # Minimum lines of a corpus for misaligned ranges.
FEWEST_SCORED = 200  # Minimum lines of a corpus for z-scores.
_FEWEST_FOR_UNRELATED = 1000  # Minimum lines of a corpus for reporting unrelated ranges.
_FEWEST_UNSEEN = 30  # Minimum held-out pairs to measure the lexicon with them alone.
_NUM_RANDOM = 4000  # Random pairs of lines.
_RANDOM_DISTANCE = 200  # Lines between the source and the target line of a random pair, or more.
_DOUBTFUL = -3.5  # Lines with a lower z-score are not used to learn the next lexicon.
MOST_TOKENS = 64  # The tokens of a line that are compared.


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
    num_rows = len(lines.source.lengths)
    # Of each row: the offset of its target line, and whether the lexicon may learn from this pair.
    offsets = np.zeros(num_rows, np.int16)
    to_learn = np.zeros(num_rows, bool)
    scores = {}
    z_scores = {}
    for index, (name, (start, end)) in enumerate(spans.items()):
        size = end - start
        path = folder / f"score-{index}.bin"
        scores[name] = Column(path, np.float32, size)
        path = folder / f"z-{index}.bin"
        z_scores[name] = Column(path, np.float32, size)
        if name not in held_out:
            for part_start, part_end in _parts(start, end):
                offsets[part_start:part_end] = first_offsets(lines, part_start, part_end)
            to_learn[start:end] = True
    ranges = dict[str, list[Range]]()
    lexicon: Lexicon | None = None
    # Workers in other processes read the table of the lexicon from a file.
    table_folder = folder if workers.see_files else None
    with progress_bar("comparing words", leave=False):
        for _ in range(_MAX_ITERATIONS):
            pairs = _sample(lines, offsets, to_learn, spans)
            lexicon = learn_lexicon(lines, vocab_sizes, pairs, workers=workers, folder=table_folder)
            scorer = PairScorer(lexicon, pairs, workers)
            ranges = {name: [] for name in spans}
            num_changed = 0
            for name, (start, end) in spans.items():
                for part_start, part_end in _parts(start, end):
                    part_rows = np.arange(part_start, part_end)
                    learned_offsets = offsets[part_start:part_end]
                    diagnosis = _diagnose(scorer, part_rows, learned_offsets)
                    # Scores and ranges count lines from the start of the corpus.
                    num_before = part_start - start
                    corpus_lines = slice(num_before, part_end - start)
                    scores[name][corpus_lines] = diagnosis.scores
                    z_scores[name][corpus_lines] = diagnosis.z_scores
                    ranges[name] += (
                        misaligned.moved(num_before) for misaligned in diagnosis.ranges
                    )
                    if name not in held_out:
                        new_offsets, is_usable = _next_sample(diagnosis, learned_offsets)
                        is_changed = new_offsets != learned_offsets
                        is_changed |= is_usable != to_learn[part_start:part_end]
                        num_changed += int(is_changed.sum())
                        offsets[part_start:part_end] = new_offsets
                        to_learn[part_start:part_end] = is_usable
            if num_changed <= _MAX_CHANGED * num_rows:
                break
    # A range that reaches over the border of two parts was found as two ranges.
    merged = {name: joined(corpus_ranges) for name, corpus_ranges in ranges.items()}
    if lexicon is not None:
        # Drop the large table of the previous iteration: only scoring needed it.
        lexicon = replace(lexicon, previous_table=None)
    return Alignment(scores, z_scores, merged, lexicon)


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each part of a corpus that fits into memory, and the row after it.

    Args:
        start: First row of the corpus.
        end: Row after its last row.
    """
    # Rows at the end that are less than half a part belong to the part before them. The maximum
    # makes one part of a corpus that is smaller than that.
    last_cut = max(end - _LINES_AT_ONCE // 2, start + 1)
    cuts = range(start, last_cut, _LINES_AT_ONCE)
    return pairwise([*cuts, end])


def _sample(
    lines: Lines, offsets: Offsets, to_learn: Mask, spans: Mapping[str, tuple[int, int]]
) -> Pairs:
    """Return the pairs to learn the lexicon from: of a large corpus, an evenly spaced sample.

    Args:
        lines: The lines of all corpora.
        offsets: Offset of the target line of each row of all corpora.
        to_learn: Mask of the rows from which the lexicon may learn.
        spans: First row of each corpus, and the row after its last row.
    """
    num_rows = len(offsets)
    min_step = math.ceil(num_rows / _MAX_SAMPLED)
    step = max(sample_step(lines, num_rows), min_step)
    corpus_pairs = [np.empty((2, 0), np.int64)]  # (2, P): source rows and target rows.
    for start, end in spans.values():
        rows = np.arange(start, end, step)
        targets = rows + offsets[rows]
        is_sampled = to_learn[rows]
        is_sampled &= targets >= start
        is_sampled &= targets < end
        is_sampled &= ~_is_held_out(rows)
        sampled = rows[is_sampled], targets[is_sampled]
        corpus_pairs.append(np.stack(sampled))
    sources, targets = np.concatenate(corpus_pairs, axis=1)
    return Pairs(sources, targets)


def _is_held_out(rows: Rows) -> Mask:
    return rows % _HELD_OUT == 0


def _diagnose(scorer: PairScorer, rows: Rows, learned_offsets: Offsets) -> _Diagnosis:
    """Find misaligned ranges and compute scores for a part of a corpus.

    Args:
        scorer: Scores pairs of lines with the lexicon.
        rows: The rows of the part. (n,).
        learned_offsets: For each source line, the offset of the target line from which the
            lexicon has learned. (n,).
    """
    lines = scorer.lexicon.lines
    num_lines = len(rows)
    # Unshifted pairs: the source line and the target line of the same row, as in the files.
    unshifted_pairs = Pairs(rows, rows)
    unshifted_nats = scorer.score(unshifted_pairs)
    unshifted = PairMeasures.of_pairs(unshifted_nats, lines, unshifted_pairs)
    is_blank = unshifted.num_tokens == 0
    nats_per_token = unshifted_nats / np.maximum(unshifted.num_tokens, 1)
    nats_per_token[is_blank] = np.nan
    unknown = np.full(num_lines, np.nan)
    # What can be said about any corpus; more lines or a better lexicon allow to say more.
    minimal = _Diagnosis([], nats_per_token, unknown, np.zeros(num_lines, bool))
    if num_lines < FEWEST_ALIGNED:
        return minimal
    random_pairs = _random_pairs(rows)
    random_nats = scorer.score(random_pairs)
    at_random = PairMeasures.of_pairs(random_nats, lines, random_pairs)
    # Learned pairs: the source line and the target line at the offset of the last iteration.
    targets = (rows + learned_offsets).clip(rows[0], rows[-1])
    learned_nats = unshifted_nats.copy()
    is_shifted = targets != rows
    shifted_pairs = Pairs(rows[is_shifted], targets[is_shifted])
    learned_nats[is_shifted] = scorer.score(shifted_pairs)
    learned_pairs = Pairs(rows, targets)
    learned = PairMeasures.of_pairs(learned_nats, lines, learned_pairs)
    has_words = learned.num_tokens > 0
    # Pairs that the lexicon has learned from score better, so it is measured with unseen pairs.
    is_unseen = _is_held_out(rows) & has_words
    if is_unseen.sum() < _FEWEST_UNSEEN:
        is_unseen = has_words
    evidence = Evidence.of(learned.select(is_unseen), at_random)
    if evidence.is_missing():
        if num_lines < _FEWEST_FOR_UNRELATED:
            return minimal
        unrelated = Range(1, num_lines, None)
        return minimal._replace(ranges=[unrelated])
    learned_evidence = evidence(learned)
    unshifted_evidence = evidence(unshifted)
    ranges = list(
        find_ranges(scorer, evidence, rows, learned_offsets, unshifted_evidence, learned_evidence)
    )
    if num_lines < _FEWEST_FOR_UNRELATED:
        ranges = [misaligned for misaligned in ranges if misaligned.offset is not None]
    if num_lines < FEWEST_SCORED or evidence.slope == 0:
        return minimal._replace(ranges=ranges)
    scores = learned.scores
    share = share_above(scores[is_unseen], at_random.scores)
    usual, spread = usual_scores(scores[has_words], share)
    z_scores = (unshifted.scores - usual) / spread
    z_scores[is_blank] = np.nan
    if num_lines < _FEWEST_FOR_UNRELATED:
        return minimal._replace(ranges=ranges, z_scores=z_scores)
    is_doubtful = scores < usual + _DOUBTFUL * spread
    is_doubtful |= weak_mask(learned_evidence)
    is_doubtful &= has_words
    return _Diagnosis(ranges, nats_per_token, z_scores, is_doubtful)


def _random_pairs(rows: Rows) -> Pairs:
    """Return random pairs of lines that are far apart. The same rows always give the same pairs."""
    num_lines = len(rows)
    generator = np.random.default_rng(num_lines)
    num_pairs = min(_NUM_RANDOM, num_lines)
    min_distance = min(_RANDOM_DISTANCE, num_lines // 3)
    sources = generator.integers(0, num_lines, num_pairs)
    # After the last line the first line follows, so a distance must not be nearly all lines, too.
    distances = generator.integers(min_distance, num_lines - min_distance, num_pairs)
    targets = (sources + distances) % num_lines
    return Pairs(rows[sources], rows[targets])


def _next_sample(diagnosis: _Diagnosis, learned_offsets: Offsets) -> tuple[Offsets, Mask]:
    """Return the new offset of each line, and whether the next lexicon may learn from the line.

    Lines in an unrelated range have the offset 0. A doubtful line is used again as soon as its
    offset has changed.
    """
    offsets = np.zeros_like(learned_offsets)
    is_related = np.ones_like(learned_offsets, bool)
    for misaligned in diagnosis.ranges:
        lines = slice(misaligned.start - 1, misaligned.end)  # A range counts lines from 1.
        offsets[lines] = misaligned.offset or 0
        is_related[lines] = misaligned.offset is not None
    is_doubtful = diagnosis.is_doubtful & (offsets == learned_offsets)
    return offsets, is_related & ~is_doubtful


class CutLines:
    """Lines, each truncated to `MOST_TOKENS` tokens.

    Only the lengths are held in memory, in two bytes per pair.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.source = _CutSide(lines.source)
        self.target = _CutSide(lines.target)

    def __reduce__(self) -> tuple[Any, ...]:
        return CutLines, (self._lines,)


class _CutSide:
    """One side of `CutLines`."""

    def __init__(self, side: LineSide) -> None:
        self._side = side
        self.lengths = _CutLengths(side.lengths[:])

    def ids(self, rows: Rows) -> FlatIds:
        """Return the ids of ``rows``, of each sentence at most `MOST_TOKENS`."""
        flat = self._side.ids(rows)
        longest = flat.lengths.max(initial=0)
        if longest <= MOST_TOKENS:
            return flat
        starts = flat.offsets[flat.sentences]
        positions = np.arange(len(flat.ids)) - starts  # Of each token in its sentence, from 0.
        is_kept = positions < MOST_TOKENS
        lengths = np.minimum(flat.lengths, MOST_TOKENS)
        return FlatIds(flat.ids[is_kept], lengths)


class _CutLengths:
    """Lengths in tokens, at most `MOST_TOKENS`; stored in one byte, but returned as int32."""

    def __init__(self, lengths: npt.NDArray[np.integer]) -> None:
        cut = np.minimum(lengths, MOST_TOKENS)
        self._values = cut.astype(np.uint8)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any, /) -> npt.NDArray[np.int32]:
        values = self._values[rows]
        return values.astype(np.int32)
