"""Which target tokens translate a source token: by hand, and by a slow and simple computation."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from nmt.data import lexicon
from nmt.data.lexicon import Pairs, learn_lexicon, likely_translations
from nmt.data.store import ParallelStore, StoreWriter
from nmt.text.flat import FlatIds

Text = Sequence[tuple[Sequence[int], Sequence[int]]]

DAS, HAUS, BUCH, EIN = range(4)
THE, HOUSE, BOOK, A = range(4)
TOYS: Text = (([DAS, HAUS], [THE, HOUSE]), ([DAS, BUCH], [THE, BOOK]), ([EIN, BUCH], [A, BOOK]))
"""The example of Koehn (2010), Statistical Machine Translation, section 4.2."""


def store(folder: Path, pairs: Text) -> ParallelStore:
    with StoreWriter(folder / "store", 100) as writer:
        source, target = (FlatIds.of([pair[side] for pair in pairs]) for side in (0, 1))
        writer.append(source, target, 0, range(1, len(pairs) + 1))
    return ParallelStore.open(folder / "store")


def slow_links(
    pairs: Text, sizes: tuple[int, int], iterations: int
) -> dict[tuple[int, int], float]:
    """Both directions of model 1 in agreement, a pair of tokens at a time."""
    frequencies = [np.full(size, 0.5) for size in sizes]
    for pair in pairs:
        for side in (0, 1):
            for token in pair[side]:
                frequencies[side][token] += 1
    source_shares, target_shares = (each / each.sum() for each in frequencies)
    links: dict[tuple[int, int], float] = {}
    for iteration in range(iterations):
        totals = defaultdict[tuple[int, int], float](float)
        for (s, t), count in links.items():
            totals[0, s] += count
            totals[1, t] += count
        before, links, empty = links, defaultdict(float), 0.1 if iteration else 0.0

        def forward(s: int, t: int, source: Sequence[int], first: bool, side: int) -> float:
            whole = 1.0 if first else totals[side, (s, t)[side]]  # noqa: B023
            return 0.9 / len(source) * (1.0 if first else before[s, t]) / whole  # noqa: B023

        for source, target in pairs:
            for s in source:
                for t in target:
                    there = forward(s, t, source, not iteration, 0) / (
                        sum(forward(x, t, source, not iteration, 0) for x in source)
                        + empty * target_shares[t]
                    )
                    back = forward(s, t, target, not iteration, 1) / (
                        sum(forward(s, x, target, not iteration, 1) for x in target)
                        + empty * source_shares[s]
                    )
                    links[s, t] += there * back
    return links


def test_counts_equal_a_calculation_by_hand(tmp_path: Path) -> None:
    """At first every source word of a sentence has half of each target word, and the other way
    round: a quarter of a link. `das` meets `the` twice, and all others once but `buch` and `book`.
    """
    rows = np.arange(3)
    learned = learn_lexicon(store(tmp_path, TOYS), (4, 4), Pairs(rows, rows), iterations=1)
    assert learned.table is not None
    assert learned.table.cells.reshape(4, 4).tolist() == [
        [0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.0, 0.0],
        [0.25, 0.0, 0.5, 0.25], [0.0, 0.0, 0.25, 0.25],
    ]  # fmt: skip
    assert learned.table.totals[0].tolist() == [1.0, 0.5, 1.0, 0.5]


def test_translations_are_sorted_by_probability_and_filled_up_with_minus_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = store(tmp_path, TOYS)
    assert likely_translations(toys, (5, 4), 1).tolist() == [[THE], [HOUSE], [BOOK], [A], [-1]]
    table = likely_translations(toys, (5, 4), 4)
    assert table.dtype == np.int32
    assert table.shape == (5, 4)
    assert [(row >= 0).sum() for row in table] == [3, 2, 3, 2, 0]
    assert table[HAUS].tolist() == [HOUSE, THE, -1, -1]
    # Of very many pairs a part that is evenly spread teaches.
    monkeypatch.setattr(lexicon, "_MOST_COOCCURRENCES", 4)
    lines = store(tmp_path / "many", [([i], [i]) for i in range(12)])
    table = likely_translations(lines, (12, 12), 2)
    assert [i for i, row in enumerate(table.tolist()) if row[0] >= 0] == [0, 3, 6, 9]


def test_a_shortlist_has_the_most_frequent_targets_and_the_translations_of_each_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target token 2 occurs four times, 5 twice, 1 and 4 once each, all others never."""
    lines = store(tmp_path, [([0, 0, 0, 0, 3], [2, 5]), ([3, 1], [2, 2, 1]), ([3], [5, 4, 2])])
    monkeypatch.setattr(lexicon, "_MOST_COMMON", 3)
    lexicon.write_shortlist(tmp_path / "shortlist", lines, (5, 6), vocab_hash="v1")
    tables = load_file(tmp_path / "shortlist")
    assert tables["common"].tolist() == [2, 5, 1]
    expected = likely_translations(lines, (5, 6), 30)
    assert tables["candidates"].tolist() == expected.tolist()
    assert expected.shape == (5, 30)


SENTENCES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=5), st.lists(st.integers(0, 6), max_size=5)
    ),
    max_size=12,
)  # fmt: skip


@given(pairs=SENTENCES)
def test_the_size_of_the_parts_that_fit_into_the_cache_changes_no_bit(pairs: Text) -> None:
    rows = np.arange(len(pairs))
    tables = []
    for in_cache in (1, 40, 1 << 17):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            patch.setattr(lexicon, "IN_CACHE", in_cache)
            learned = learn_lexicon(store(Path(folder), pairs), (6, 7), Pairs(rows, rows))
            assert learned.table is not None
            arrays = learned.table.cells, *learned.table.totals
            tables.append([array.tobytes() for array in arrays])
    assert tables[0] == tables[1] == tables[2]


@given(pairs=SENTENCES, most=st.integers(2, 4), at_once=st.sampled_from([1 << 23, 20]))
def test_translations_equal_a_slow_reference(pairs: Text, most: int, at_once: int) -> None:
    """Where counts are equal up to rounding, any order will do. Between merges four times ``most``
    are kept: here all 7 of them."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(lexicon, "_COOCCURRENCES_AT_ONCE", at_once)
        patch.setattr(lexicon, "_MERGED_AT_ONCE", at_once)
        table = likely_translations(store(Path(folder), pairs), (6, 7), most)
    links = slow_links(pairs, (6, 7), 4)
    for source, row in enumerate(table.tolist()):
        found = [token for token in row if token >= 0]
        expected = sorted((-n, t) for (s, t), n in links.items() if s == source)[:most]
        assert len(set(found)) == len(found) == len(expected)
        assert [-links[source, t] for t in found] == pytest.approx(
            [n for n, _ in expected], rel=1e-4, abs=1e-5
        )
