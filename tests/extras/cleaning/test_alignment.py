"""Ranges of lines that do not belong together: found where they are, and only there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from nmt.data.lexicon import Pairs, learn_lexicon
from nmt.data.store import ParallelStore, StoreWriter
from nmt.extras.cleaning import evidence
from nmt.extras.cleaning.alignment import MOST_TOKENS, Alignment, CutLines, align_corpora
from nmt.extras.cleaning.evidence import PairScorer, usual_scores
from nmt.extras.cleaning.ranges import (
    MOST_OFFSET,
    Range,
    alike_offset,
    best_path,
    joined,
    likely_offsets,
    path_ranges,
)
from nmt.text.flat import FlatIds

Rows = npt.NDArray[np.int64]
VOCAB = 400


class TextSide:
    """Token ids of one side, in memory."""

    def __init__(self, lines: Sequence[Sequence[int]]) -> None:
        self._lines = lines
        self.lengths = np.array([len(line) for line in lines], np.int32)

    def ids(self, rows: Rows) -> FlatIds:
        return FlatIds.of([self._lines[row] for row in rows])


class Text:
    """Token ids of both sides, in memory."""

    def __init__(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> None:
        self.source, self.target = TextSide(source), TextSide(target)


def language(num: int, seed: int = 1) -> tuple[list[list[int]], list[list[int]]]:
    """Lines of words of Zipf's frequencies, and the same in words of another language."""
    random = np.random.default_rng(seed)
    other = random.permutation(VOCAB)
    sources = [(random.zipf(1.3, random.integers(4, 16)) % VOCAB).tolist() for _ in range(num)]
    return sources, [
        [int(other[word]) for word in line[: len(line) - i % 2]] for i, line in enumerate(sources)
    ]


def learned(text: Text, rows: Rows) -> PairScorer:
    pairs = Pairs(rows, rows)
    return PairScorer(learn_lexicon(text, (VOCAB, VOCAB), pairs), pairs)


def looked_at(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Alignment:
    with tempfile.TemporaryDirectory() as folder:
        spans = {"c": (0, len(source))}
        found = align_corpora(Text(source, target), (VOCAB, VOCAB), spans, Path(folder))
        scores, z_scores = ({"c": each["c"][:]} for each in (found.scores, found.z_scores))
        return replace(found, scores=scores, z_scores=z_scores)


def test_the_scores_of_a_pair_do_not_depend_on_the_pairs_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the lexicon has learned from none of them, which saves work."""
    scorer = learned(Text(*language(60)), np.arange(0, 60, 2))
    rows = np.arange(60)
    pairs = Pairs(np.concatenate((rows, rows)), np.concatenate((rows, rows[::-1])))
    together = scorer.score(pairs)
    monkeypatch.setattr(evidence, "IN_CACHE", 1)
    assert scorer.score(pairs).tobytes() == together.tobytes()


def assert_near(found: Sequence[Range], *expected: Range) -> None:
    """Ranges are those expected, but for three lines at each end."""
    assert [each.offset for each in found] == [each.offset for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert abs(one.start - other.start) <= 3
        assert abs(one.end - other.end) <= 3


def test_clean_lines_have_no_ranges_and_score_better_than_exchanged_ones() -> None:
    source, target = language(1200)
    bad = np.arange(100, 1200, 50)
    for row in bad:
        target[row], target[row - 7] = target[row - 7], target[row]
    found = looked_at(source, target)
    assert found.ranges == {"c": []}
    exchanged = np.zeros(1200, np.bool_)
    exchanged[bad] = exchanged[bad - 7] = True
    scores = found.scores["c"][:]
    above = (scores[~exchanged][:, None] > scores[exchanged]).mean()  # area under the ROC curve
    assert above > 0.99


@pytest.mark.parametrize("offset", [1, -3, 50, 99])
def test_a_shifted_block_is_found_to_the_line(offset: int) -> None:
    source, target = language(1500)
    extra = [target[i] for i in np.random.default_rng(3).integers(0, 1500, abs(offset))]
    if offset > 0:  # lines too many at 400, as many missing 80 further down
        target[400 : 480 + offset] = [*extra, *target[400:480]]
        start, end = 401, 480
    else:
        target[400:480] = [*target[400 - offset : 480], *extra]
        start, end = 401 - offset, 480
    found = [each for each in looked_at(source, target).ranges["c"] if each.offset]
    assert_near(found, Range(start, end, offset))


def test_a_missing_line_shifts_all_later_lines_and_random_lines_are_unrelated() -> None:
    source, target = language(1500)
    target[900:960] = [target[i] for i in np.random.default_rng(5).integers(0, 1500, 60)]
    del target[300], source[-1]
    found = looked_at(source, target).ranges["c"]
    assert_near(found, Range(302, 900, -1), Range(901, 960, None), Range(961, 1499, -1))
    # And what follows a large missing block is unrelated.
    source, target = language(1500)
    del target[500:800]
    assert looked_at(source[:1200], target).ranges["c"] == [Range(501, 1200, None)]


def test_few_or_blank_lines_are_accepted() -> None:
    source, target = language(300)
    for row in range(0, 300, 3):
        target[row] = []
    found = looked_at(source, target)
    assert found.ranges["c"] == []
    assert np.isnan(found.scores["c"][::3]).all()
    assert np.isfinite(found.scores["c"][1::3]).all()
    assert looked_at([[1, 2]], [[3]]).ranges == {"c": []}


def test_scores_of_all_combinations_equal_scores_of_unseen_pairs() -> None:
    scorer = learned(Text(*language(200)), np.arange(100))
    sources, targets = np.arange(120, 150), np.arange(115, 160)
    table = scorer.score_all(sources, targets)
    each = scorer.score(Pairs(np.repeat(sources, len(targets)), np.tile(targets, len(sources))))
    np.testing.assert_allclose(table.ravel(), each, rtol=1e-3, atol=1e-3)


def test_scores_leave_out_the_counts_of_the_pair_itself() -> None:
    source, target = language(200)
    for row in range(1, 40):  # words that a line repeats, and that no other line has
        source[row], target[row] = [300 + row] * 3 + [1, 2], [340 + row] * 2 + [2, 1]
    rows = np.arange(1, 40)[np.arange(1, 40) % 16 != 0]
    scorer = learned(Text(source, target), np.arange(200))
    own = scorer.score(Pairs(rows, rows))
    other = scorer.score(Pairs(rows, np.roll(rows, 1)))
    np.testing.assert_allclose(own.mean(), other.mean(), atol=1.0)


@pytest.mark.parametrize("offset", [100, -100])
def test_lengths_suggest_the_largest_offsets(offset: int) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 1000)
    source, target = lengths[200:800], lengths[200 - offset : 800 - offset]
    offsets, _ = likely_offsets(source, target)
    assert (offsets[250:350] == offset).all()


def test_lengths_alone_suggest_an_offset() -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 400)
    offsets, agreement = likely_offsets(lengths, np.concatenate((lengths[:200], lengths[195:395])))
    assert not offsets[:150].any()
    assert (offsets[225:350] == 5).all()
    assert (agreement[:150] > 2).all()
    offsets, agreement = likely_offsets(lengths, np.random.default_rng(2).permutation(lengths))
    assert not offsets.any()
    assert (agreement < 0.6).all()


@pytest.mark.parametrize("offset", [0, 3, -50])
def test_rare_words_suggest_an_offset_if_all_lengths_are_equal(offset: int) -> None:
    source, target = language(400)
    source, target = ([line[:4] for line in side] for side in (source, target))
    text = Text(source[max(-offset, 0) :], target[max(offset, 0) :])
    assert alike_offset(text, 0, 400 - abs(offset)) == -offset


def test_a_whole_corpus_of_lines_of_one_length_is_found_shifted() -> None:
    source, target = ([line[:4] for line in side] for side in language(1000))
    assert_near(looked_at(source[:-1], target[1:]).ranges["c"], Range(0, 1000, -1))


def test_small_corpora_have_shifts_and_no_false_alarms() -> None:
    source, target = language(150)
    assert looked_at(source, target).ranges["c"] == []
    del target[60], source[-1]
    assert_near(looked_at(source, target).ranges["c"], Range(62, 149, -1))


@pytest.mark.parametrize(("num_random", "start", "end"), [(800, 0, 0), (500, 1000, 1600)])
def test_the_lexicon_ignores_unrelated_lines(num_random: int, start: int, end: int) -> None:
    source, target = language(2400)
    random = np.random.default_rng(4)
    is_random, is_moved = random.permutation(2400) < num_random, np.zeros(2400, np.bool_)
    is_moved[start:end] = True
    target[start:end] = target[start + 1 : end + 1]
    for row in np.flatnonzero(is_random):
        target[row] = target[random.integers(2400)]
    is_low = looked_at(source, target).z_scores["c"][:] < -3.5
    assert all(is_low[each].mean() > 0.9 for each in (is_random, is_moved) if each.any())
    assert is_low[~is_random & ~is_moved].mean() < 0.02


@pytest.mark.parametrize("seed", range(6))
def test_the_best_path_is_the_best_of_all_paths(seed: int) -> None:
    """A change costs 14 nats; a start or an end outside the middle, 7; no offset has 0 nats."""
    evidence = np.random.default_rng(seed).normal(0, 9, (4, 3)).astype(np.float32)
    table = np.column_stack([evidence, np.zeros(4)])

    def value(path: Sequence[int]) -> float:
        changes = sum(one != other for one, other in pairwise(path))
        ends = (path[0] != 1) + (path[-1] != 1)
        return float(table[range(4), list(path)].sum()) - 14 * changes - 7 * ends

    best = max(product(range(4), repeat=4), key=value)
    assert best_path(evidence).tolist() == list(best)


def test_changing_the_offset_has_a_cost_and_equal_ranges_are_merged() -> None:
    evidence = np.full((40, 3), -1.0, np.float32)
    evidence[:, 1] = 2.0
    assert (best_path(evidence) == 1).all()
    evidence[10:30] = [4.0, -4.0, -4.0]  # 20 lines of 8 nats more: two changes cost 28
    assert best_path(evidence).tolist() == [1] * 10 + [0] * 20 + [1] * 10
    evidence[12:30] = [0.0, 2.0, 0.0]  # two lines are worth 16
    assert (best_path(evidence) == 1).all()
    evidence[:] = -4.0
    assert (best_path(evidence) == 3).all()
    ranges = [Range(1, 5, 2), Range(6, 9, 2), Range(10, 12, None)]  # of parts
    assert joined(ranges) == [Range(1, 9, 2), Range(10, 12, None)]


def test_a_third_of_random_pairs_hardly_changes_the_typical_score() -> None:
    generator = np.random.default_rng(1)
    good, bad = generator.normal(10, 2, 4000), generator.normal(-8, 2, 2000)
    both = np.concatenate((good, bad))
    assert usual_scores(good, 0.95) == pytest.approx((10, 2), abs=0.2)
    assert usual_scores(both, 0.61) == pytest.approx((10, 2), abs=0.4)


def test_scores_are_nats_per_token_and_a_held_out_set_teaches_no_words(tmp_path: Path) -> None:
    """The set has words of its own, with translations that its lines alone could teach."""
    source, target = language(600)
    own, theirs = language(400, seed=2)
    source += [[word + VOCAB for word in line] for line in own]
    target += [[word + VOCAB for word in line] for line in theirs]
    text = Text(source, target)
    spans = {"train": (0, 600), "valid": (600, 1000)}
    found = align_corpora(text, (2 * VOCAB, 2 * VOCAB), spans, tmp_path, held_out={"valid"})
    assert found.scores["valid"][:].mean() < 0 < found.scores["train"][:].mean()
    # The lexicon has not learned from every 16th line, so nothing is subtracted for the pair.
    assert found.lexicon is not None
    rows = np.arange(0, 600, 16)
    nothing = np.empty(0, np.int64)
    nats = PairScorer(found.lexicon, Pairs(nothing, nothing)).score(Pairs(rows, rows))
    tokens = text.source.lengths[rows] + text.target.lengths[rows]
    np.testing.assert_allclose(found.scores["train"][:][::16], nats / tokens, rtol=1e-4)


def test_long_lines_are_cut_and_those_beside_them_are_whole(tmp_path: Path) -> None:
    lines = [[number] * length for number, length in enumerate((3, 70, 64, 0, 100, 5))]
    with StoreWriter(tmp_path / "store", 10) as writer:
        writer.append(FlatIds.of(lines), FlatIds.of(lines[::-1]), 0, range(len(lines)))
    cut = CutLines(ParallelStore.open(tmp_path / "store"))
    rows = np.array([4, 0, 1, 5])
    for ids_of, lengths, side in (
        (cut.source.ids, cut.source.lengths, lines),
        (cut.target.ids, cut.target.lengths, lines[::-1]),
    ):
        expected = [side[row][:MOST_TOKENS] for row in rows]
        assert ids_of(rows).rows() == expected
        assert lengths[rows].tolist() == [len(line) for line in expected]


@pytest.mark.parametrize(
    ("stretches", "expected"),
    [
        # Offset and length of each stretch of a path; None if no offset fits.
        ([(0, 30), (2, 25), (None, 5), (2, 25), (0, 30)], [Range(31, 85, 2)]),
        ([(0, 30), (2, 25), (None, 25), (2, 25)],
         [Range(31, 55, 2), Range(56, 80, None), Range(81, 105, 2)]),
        ([(0, 30), (2, 9), (0, 30), (None, 19), (0, 9)], []),  # too short
        ([(0, 9), (-3, 10), (0, 9), (None, 20)], [Range(10, 19, -3), Range(29, 48, None)]),
        ([(0, 30), *[(1, 5), (-1, 5)] * 2, (0, 30)], [Range(31, 50, None)]),  # changes all the time
    ],
)  # fmt: skip
def test_a_path_becomes_ranges_of_ten_shifted_or_twenty_unrelated_lines(
    stretches: list[tuple[int | None, int]], expected: list[Range]
) -> None:
    unrelated = 2 * MOST_OFFSET + 1
    states = [unrelated if offset is None else MOST_OFFSET + offset for offset, _ in stretches]
    path = np.repeat(states, [length for _, length in stretches])
    assert list(path_ranges(path, 0)) == expected
    later = [replace(each, start=each.start + 7, end=each.end + 7) for each in expected]
    assert list(path_ranges(path, 7)) == later
