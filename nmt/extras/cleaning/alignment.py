"""The lines of all corpora -> a score of the words of each pair, and the misaligned ranges.

Lengths of lines say where a shift may be: that is enough to learn a lexicon from lines that do
belong together. Its scores then say, line by line, which ones do not; without these the lexicon is
learned again.

Shapes: n lines of a corpus, or of a part of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Lexicon, Pairs, learn_lexicon, sample_step
from nmt.data.store import Ids, Lines, ParallelStore, Rows
from nmt.data.workers import HERE, Workers
from nmt.extras.cleaning.evidence import Evidence, Measured, PairScorer, share_above, usual_scores
from nmt.extras.cleaning.ranges import Range, find_ranges, first_offsets, is_odd, joined
from nmt.extras.cleaning.scores import Column, Scores
from nmt.files.progress import progress_bar

_ROUNDS = 4
_AGREED = 0.01  # Share of the lines whose offset may differ from what the lexicon was taught.
_PART = 1 << 19
_MOST_LESSONS = 1 << 20
_HELD_OUT = 16  # One of so many pairs teaches no lexicon, to see what it knows.
_SMALLEST = 100
_FEWEST_SCORED = 200  # Lines that tell what is usual.
_FEWEST_UNRELATED = 1000  # Lines of a corpus that may say that some are unrelated.
_FEWEST_UNSEEN = 30
_SAMPLE, _FAR = 4000, 200
_DOUBTFUL = -3.5  # Standard deviations below what is usual: such lines do not teach again.
MOST_TOKENS = 64
Offsets = npt.NDArray[np.int16]
Values = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Alignment:
    """What the lines of some corpora say about each other."""

    # Per corpus, for each line: how much more probable its tokens are as a translation than
    # anywhere, in nats per token; not a number where a side is blank or unreadable.
    scores: Mapping[str, Scores] = field(default_factory=dict)
    # Per corpus, for each line: standard deviations by which its score, on a scale on which lines
    # of all lengths are alike, lies above what is usual; not a number where that is not known.
    z_scores: Mapping[str, Scores] = field(default_factory=dict)
    # Per corpus: its misaligned ranges. None below 100 lines; only shifts below 1,000.
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    lexicon: Lexicon | None = None  # the last one


class _Judgement(NamedTuple):
    """What a lexicon says of the lines of a part."""

    ranges: list[Range]
    z_scores: Values  # As in `Alignment`. (n,).
    # Lines that should not teach a lexicon at the offset at which they have taught this one: what a
    # pair has taught makes it score better, right or wrong. (n,).
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
        lines: The lines of all corpora, cut off after some tokens.
        vocab_sizes: Entries of the source and of the target vocabulary.
        spans: First row of each corpus, and the row behind its last.
        folder: For the scores and other large arrays. They stay there.
        held_out: Corpora that the lexicon must not be learned from.
        workers: Work on batches of lines; they see the folder.
    """
    num = len(lines.source_lengths)
    offsets, is_taught = np.zeros(num, np.int16), np.zeros(num, np.bool_)
    parts = [
        (name, start, low, high)
        for name, (start, end) in spans.items()
        for low, high in _parts(start, end)
    ]
    for name, _, low, high in parts:
        if name not in held_out:
            offsets[low:high] = first_offsets(lines, low, high)
            is_taught[low:high] = True
    scores, z_scores = dict[str, Column](), dict[str, Column]()
    for number, (name, (low, high)) in enumerate(spans.items()):
        for kind, columns in (("score", scores), ("z", z_scores)):
            columns[name] = Column(folder / f"{kind}-{number}.bin", np.float32, high - low)
    ranges: dict[str, list[Range]] = {}
    lexicon: Lexicon | None = None
    saved = folder if workers.see_files else None
    with progress_bar("comparing words", leave=False):
        for _ in range(_ROUNDS):
            lessons = _lessons(lines, offsets, is_taught, spans)
            lexicon = learn_lexicon(lines, vocab_sizes, lessons, workers=workers, folder=saved)
            scorer = PairScorer(lexicon, lessons, workers)
            ranges, changed = {name: [] for name in spans}, 0
            for name, start, low, high in parts:
                rows, taught = np.arange(low, high), offsets[low:high]
                standing = scorer.score(Pairs(rows, rows))
                judgement = _judge(scorer, rows, taught, standing)
                place = slice(low - start, high - start)
                scores[name][place] = _per_token(standing, lines, rows)
                z_scores[name][place] = judgement.z_scores
                for found in judgement.ranges:
                    first, last = (line + low - start for line in (found.start, found.end))
                    ranges[name].append(replace(found, start=first, end=last))
                if name not in held_out:
                    new, teaches = _next_lessons(judgement, taught)
                    changed += int(((new != taught) | (teaches != is_taught[low:high])).sum())
                    offsets[low:high], is_taught[low:high] = new, teaches
            if changed <= _AGREED * num:
                break
    own = {name: joined(found) for name, found in ranges.items()}
    # Without the large table that only scores of taught pairs need.
    return Alignment(scores, z_scores, own, lexicon and replace(lexicon, before=None))


def _parts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a corpus into parts of a size that memory holds; a small rest goes with the last."""
    starts = list(range(low, max(high - _PART // 2, low + 1), _PART))
    return pairwise([*starts, high])


def _lessons(
    lines: Lines, offsets: Offsets, is_taught: Mask, spans: Mapping[str, tuple[int, int]]
) -> Pairs:
    """Return the pairs to learn from: of very many, a part that is evenly spread."""
    step = max(sample_step(lines, len(offsets)), -(-len(offsets) // _MOST_LESSONS))
    found = [np.empty((2, 0), np.int64)]
    for low, high in spans.values():
        rows = np.arange(low, high, step)
        targets = rows + offsets[rows]
        inside = is_taught[rows] & (targets >= low) & (targets < high) & ~_is_held_out(rows)
        found.append(np.stack((rows[inside], targets[inside])))
    return Pairs(*np.concatenate(found, axis=1))


def _is_held_out(rows: Rows) -> Mask:
    return rows % _HELD_OUT == 0


def _per_token(totals: Values, lines: Lines, rows: Rows) -> Values:
    tokens = Measured.of_pairs(totals, lines, Pairs(rows, rows)).tokens
    return np.where(tokens > 0, totals / np.maximum(tokens, 1), np.nan)


def _judge(scorer: PairScorer, rows: Rows, taught: Offsets, standing: Values) -> _Judgement:
    """Judge lines of a corpus by what a lexicon knows.

    Args:
        scorer: Knows words.
        rows: The rows of a part of a corpus. (n,).
        taught: Offset at which each line has taught the lexicon. (n,).
        standing: What the lexicon scores the lines as they stand. (n,).
    """
    lines, num = scorer.lexicon.lines, len(rows)
    nothing = _Judgement([], np.full(num, np.nan), np.zeros(num, np.bool_))
    if num < _SMALLEST:
        return nothing
    strangers = _strangers(rows)
    at_random = Measured.of_pairs(scorer.score(strangers), lines, strangers)
    as_it_stands = Measured.of_pairs(standing, lines, Pairs(rows, rows))
    beside = (rows + taught).clip(rows[0], rows[-1])
    totals, is_moved = standing.copy(), beside != rows
    totals[is_moved] = scorer.score(Pairs(rows[is_moved], beside[is_moved]))
    as_taught = Measured.of_pairs(totals, lines, Pairs(rows, beside))
    has_words = as_taught.tokens > 0
    unseen = _is_held_out(rows) & has_words
    if unseen.sum() < _FEWEST_UNSEEN:
        unseen = has_words
    evidence = Evidence.of(as_taught.part(unseen), at_random)
    if evidence.is_missing():
        is_long = num >= _FEWEST_UNRELATED
        return nothing._replace(ranges=[Range(1, num, None)] if is_long else [])
    there = evidence(as_taught)
    here = np.where(taught == 0, there, evidence(as_it_stands))
    ranges = list(find_ranges(scorer, evidence, rows, taught, here, there))
    if num < _FEWEST_UNRELATED:  # so few do not say that lines are unrelated
        ranges = [found for found in ranges if found.offset is not None]
    if num < _FEWEST_SCORED or not evidence.slope:
        return nothing._replace(ranges=ranges)
    # What a pair has taught makes it score better, so only unseen ones say how many are right.
    share_right = share_above(as_taught.scores[unseen], at_random.scores)
    usual, spread = usual_scores(as_taught.scores[has_words], share_right)
    is_low = is_odd(there) | (as_taught.scores < usual + _DOUBTFUL * spread)
    z_scores = np.where(as_it_stands.tokens > 0, (as_it_stands.scores - usual) / spread, np.nan)
    return _Judgement(ranges, z_scores, has_words & is_low & (num >= _FEWEST_UNRELATED))


def _strangers(rows: Rows) -> Pairs:
    """Return lines and others far from them: the same ones each time."""
    num = len(rows)
    generator = np.random.default_rng(num)
    sources = generator.integers(0, num, min(_SAMPLE, num))
    far = min(_FAR, num // 3)
    targets = (sources + generator.integers(far, num - far, len(sources))) % num
    return Pairs(rows[sources], rows[targets])


def _next_lessons(judgement: _Judgement, taught: Offsets) -> tuple[Offsets, Mask]:
    """Return the offset of each line, and whether it is to teach the next lexicon at it."""
    offsets, teaches = np.zeros(len(taught), np.int16), np.ones(len(taught), np.bool_)
    for found in judgement.ranges:
        place = slice(found.start - 1, found.end)
        offsets[place] = found.offset or 0
        teaches[place] = found.offset is not None
    return offsets, teaches & ~(judgement.is_doubtful & (offsets == taught))


class CutLines:
    """A view of a store in which each sentence ends after `MOST_TOKENS` tokens.

    Memory holds two bytes a line. It travels to other processes as its store.
    """

    def __init__(self, store: ParallelStore) -> None:
        self._store = store
        self.source_lengths = _CutLengths(store.source_lengths)
        self.target_lengths = _CutLengths(store.target_lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        return CutLines, (self._store,)

    def source_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return _cut(*self._store.source_ids(rows))

    def target_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return _cut(*self._store.target_ids(rows))


class _CutLengths:
    def __init__(self, lengths: npt.NDArray[np.integer]) -> None:
        self._values = np.minimum(lengths, MOST_TOKENS).astype(np.uint8)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any, /) -> npt.NDArray[np.int32]:
        return self._values[rows].astype(np.int32)


def _cut(ids: Ids, offsets: Rows) -> tuple[Ids, Rows]:
    """Return the first tokens of each sentence."""
    whole = np.diff(offsets)
    lengths = np.minimum(whole, MOST_TOKENS)
    if (lengths == whole).all():
        return ids, offsets
    cut = np.concatenate(([0], np.cumsum(lengths)))
    return ids[np.arange(cut[-1]) + np.repeat(offsets[:-1] - cut[:-1], lengths)], cut
