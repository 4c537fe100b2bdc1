"""The store gives back what was written; a batch is what a naive loop would build."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.loader import collate
from nmt.data.store import ParallelStore, StoreWriter
from nmt.errors import DataError
from nmt.text.flat import FlatIds
from tests.examples import FEW

PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(4, 90), min_size=1, max_size=9),
        st.lists(st.integers(4, 90), min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=20,
)


def store_of(
    folder: Path, pairs: list[tuple[list[int], list[int]]], vocab_size: int = 100
) -> ParallelStore:
    half = len(pairs) // 2
    with StoreWriter(folder / "s", vocab_size) as writer:
        for index, part in enumerate((pairs[:half], pairs[half:])):
            lines = list(range(1, len(part) + 1))
            source, target = (FlatIds.of([pair[side] for pair in part]) for side in (0, 1))
            writer.append(source, target, index, lines)
    return ParallelStore.open(folder / "s")


@FEW
@given(pairs=PAIRS, vocab_size=st.sampled_from([100, 1 << 16, 1 + (1 << 16)]), data=st.data())
def test_reading_gives_back_what_was_written(
    pairs: list[tuple[list[int], list[int]]], vocab_size: int, data: st.DataObject
) -> None:
    """Up to the last id of a vocabulary."""
    pairs = [([vocab_size - 1], [vocab_size - 1]), *pairs]
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(Path(folder), pairs, vocab_size)
        others = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=8))
        rows = [0, *others]
        sources = store.source.ids(np.array(rows, dtype=np.int64))
        targets = store.target.ids(np.array(rows, dtype=np.int64))
        assert len(store) == len(pairs)
        assert store.source.lengths.tolist() == [len(s) for s, _ in pairs]
        assert sources.ids.tolist() == [i for row in rows for i in pairs[row][0]]
        assert targets.ids.tolist() == [i for row in rows for i in pairs[row][1]]
        assert targets.lengths.tolist() == [len(pairs[row][1]) for row in rows]
        assert sources.offsets[-1] == len(sources.ids)
        half = len(pairs) // 2
        assert store.corpus.tolist() == [0] * half + [1] * (len(pairs) - half)


@FEW
@given(pairs=PAIRS)
def test_batches_have_bos_and_eos_in_their_place(pairs: list[tuple[list[int], list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = np.arange(len(pairs))[::-1].copy()
        store = store_of(Path(folder), pairs)
        sides = store.source.ids(rows), store.target.ids(rows)
        batch, filled = collate(*sides, rows), collate(*sides, rows, longest=99)
    backwards = pairs[::-1]
    assert batch.source.ids.tolist() == [i for s, _ in backwards for i in [*s, 3]]
    assert batch.target.ids.tolist() == [i for _, t in backwards for i in [2, *t]]
    assert batch.gold.tolist() == [i for _, t in backwards for i in [*t, 3]]
    for side, own in ((batch.source, 0), (batch.target, 1)):
        lengths = [len(pair[own]) + 1 for pair in backwards]
        assert side.lengths.tolist() == lengths
        assert side.max_length == max(lengths)
        assert side.cu_seqlens.dtype == torch.int32
    assert batch.num_target_tokens == sum(len(t) + 1 for _, t in pairs)
    assert batch.num_source_tokens == batch.source.num_tokens == len(batch.source.ids)
    # Filler, which rounds sizes up, does not count.
    assert filled.source.num_tokens == len(filled.source.ids) >= len(batch.source.ids)
    assert filled.num_source_tokens == batch.num_source_tokens
    assert filled.num_target_tokens == batch.num_target_tokens == len(filled.gold)
    cells = [len(pairs) * max(len(pair[own]) + 1 for pair in pairs) for own in (0, 1)]
    assert batch.num_padded_tokens == sum(cells)


def test_tokens_of_a_part_of_the_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 0 and 1 are of corpus 0, rows 2 and 3 of corpus 1."""
    monkeypatch.setattr("nmt.data.store._COUNTED_AT_ONCE", 2)
    pairs = [([4, 5], [6]), ([4], [6, 6]), ([5, 5, 7], [4]), ([7], [5])]
    store = store_of(tmp_path, pairs)
    assert [store.rows_of(corpus) for corpus in (0, 1, 2)] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 4),
    ]
    assert store.source.counts(8).tolist() == [0, 0, 0, 0, 2, 3, 0, 2]
    assert store.source.counts(8, store.rows_of(1)).tolist() == [0, 0, 0, 0, 0, 2, 0, 2]
    assert store.target.counts(8, store.rows_of(1)).tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    store_of(tmp_path, [([5, 6], [7])] * 4)
    path = tmp_path / "s" / "source.ids.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"source\.ids\.bin"):
        ParallelStore.open(tmp_path / "s")
    path.write_bytes(whole)
    (tmp_path / "s" / "corpus.bin").unlink()
    with pytest.raises(DataError, match="not a complete token store"):
        ParallelStore.open(tmp_path / "s")


@FEW
@given(PAIRS, st.lists(st.integers(1, 3), max_size=3))
def test_sentences_begin_with_the_given_ids(
    pairs: list[tuple[list[int], list[int]]], first: list[int]
) -> None:
    rows = [source for source, _ in pairs]
    flat = FlatIds.of(rows).prepend(first)
    assert flat.rows() == [first + row for row in rows]
    assert flat.lengths.tolist() == [len(first) + len(row) for row in rows]
