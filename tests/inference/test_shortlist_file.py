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

from nmt.data.store import ParallelStore, StoreWriter
from nmt.inference import shortlist_file
from nmt.inference.shortlist_file import likely_translations

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]

DAS, HAUS, BUCH, EIN = range(4)
THE, HOUSE, BOOK, A = range(4)
TOYS: Pairs = (([DAS, HAUS], [THE, HOUSE]), ([DAS, BUCH], [THE, BOOK]), ([EIN, BUCH], [A, BOOK]))
"""The example of Koehn (2010), Statistical Machine Translation, section 4.2."""


def store(folder: Path, pairs: Pairs) -> ParallelStore:
    with StoreWriter(folder / "store", 100) as writer:
        source, target = ([pair[side] for pair in pairs] for side in (0, 1))
        writer.append(source, target, 0, range(1, len(pairs) + 1))
    return ParallelStore.open(folder / "store")


def translations(table: np.ndarray) -> list[list[int]]:
    """The entries that are there."""
    return [[token for token in row if token >= 0] for row in table.tolist()]


def expected_counts(pairs: Pairs, iterations: int) -> dict[tuple[int, int], float]:
    """Model 1, a pair of words at a time."""
    probs = {(s, t): 1.0 for source, target in pairs for s in source for t in target}
    counts: dict[tuple[int, int], float] = {}
    for _ in range(iterations):
        counts = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in pairs:
            for t in target:
                whole = sum(probs[s, t] for s in source)
                for s in source:
                    counts[s, t] += probs[s, t] / whole
                    totals[s] += probs[s, t] / whole
        probs = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    return counts


def test_counts_are_those_that_were_worked_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first every source word of a sentence has half of each target word, so `das` has counts
    of 1 for `the`, 1/2 for `house` and 1/2 for `book`: probabilities 1/2, 1/4, 1/4; `haus` has 1/2
    and 1/2. Then `the` beside `das haus` is split 1/2 to 1/2, `house` 1/4 to 1/2, and so on."""
    monkeypatch.setattr(shortlist_file, "_ITERATIONS", 2)
    toys = store(tmp_path, TOYS)
    keys, counts = shortlist_file._expected_counts(
        *shortlist_file._meetings(toys, np.arange(3), 4), 4
    )
    found = dict(zip((divmod(key, 4) for key in keys.tolist()), counts.tolist(), strict=True))

    assert found == pytest.approx({
        (DAS, THE): 1 / 2 + 2 / 3, (DAS, HOUSE): 1 / 3, (DAS, BOOK): 1 / 3,
        (HAUS, THE): 1 / 2, (HAUS, HOUSE): 2 / 3,
        (BUCH, THE): 1 / 3, (BUCH, BOOK): 2 / 3 + 1 / 2, (BUCH, A): 1 / 3,
        (EIN, BOOK): 1 / 2, (EIN, A): 2 / 3,
    })  # fmt: skip


def test_the_likeliest_come_first_and_where_there_are_none_is_minus_one(tmp_path: Path) -> None:
    toys = store(tmp_path, TOYS)

    assert likely_translations(toys, (5, 4), 1).tolist() == [[THE], [HOUSE], [BOOK], [A], [-1]]
    table = likely_translations(toys, (5, 4), 4)
    assert table.dtype == np.int32
    assert table.shape == (5, 4)
    assert [len(row) for row in translations(table)] == [3, 2, 3, 2, 0]
    assert table[HAUS].tolist() == [HOUSE, THE, -1, -1]


def test_a_corpus_in_parts_has_the_sums_of_their_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair of two words on each side has four meetings: with a limit of four each is a part.

    By itself, a sentence says nothing but that each meets each; what meets twice wins.
    """
    monkeypatch.setattr(shortlist_file, "_PAIRS_AT_ONCE", 4)
    table = translations(likely_translations(store(tmp_path, TOYS), (4, 4), 4))

    assert (table[DAS][0], table[BUCH][0]) == (THE, BOOK)
    assert table[HAUS] == [THE, HOUSE]  # equals: the first id goes first


def test_of_many_parts_some_are_looked_at_from_the_first_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortlist_file, "_PAIRS_AT_ONCE", 2)
    monkeypatch.setattr(shortlist_file, "_MOST_PARTS", 3)
    pairs = [([i], [i]) for i in range(40)]
    table = translations(likely_translations(store(tmp_path, pairs), (40, 40), 2))

    assert [i for i, row in enumerate(table) if row] == [0, 17, 18, 37, 38, 39]


SENTENCES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=5), st.lists(st.integers(0, 6), max_size=5)
    ),
    max_size=12,
)  # fmt: skip


@given(pairs=SENTENCES, most=st.integers(2, 4), at_once=st.sampled_from([1 << 23, 20, 40]))
def test_the_table_is_that_of_a_slow_computation(pairs: Pairs, most: int, at_once: int) -> None:
    """Where counts are equal up to rounding, any order will do.

    Between parts four times ``most`` are kept: here all 7 of them.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(shortlist_file, "_PAIRS_AT_ONCE", at_once)
        patch.setattr(shortlist_file, "_MOST_PARTS", 1000)
        table = translations(likely_translations(store(Path(folder), pairs), (6, 7), most))
    counts: dict[tuple[int, int], float] = defaultdict(float)
    for part in parts_of(pairs, at_once):
        for meeting, count in expected_counts(part, 4).items():
            counts[meeting] += count
    for source, found in enumerate(table):
        expected = sorted((-n, t) for (s, t), n in counts.items() if s == source)[:most]
        assert len(set(found)) == len(found) == len(expected)
        assert [-counts[source, t] for t in found] == pytest.approx([n for n, _ in expected])


def parts_of(pairs: Pairs, at_once: int) -> list[Pairs]:
    """Pairs by how many meetings there are up to the end of each; the last part may have more."""
    meetings = [len(source) * len(target) for source, target in pairs]
    last = max(0, -(-sum(meetings) // at_once) - 1)
    parts: dict[int, list[tuple[Sequence[int], Sequence[int]]]] = defaultdict(list)
    for i, pair in enumerate(pairs):
        parts[min(sum(meetings[: i + 1]) // at_once, last)].append(pair)
    return list(parts.values())
