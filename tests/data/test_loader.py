"""The stream of batches: every pair once an epoch, and from any position the same stream."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import BatchConfig
from nmt.data.batch import Resegmenter
from nmt.data.loader import Loader, Position
from nmt.data.store import ParallelStore
from nmt.errors import DataError
from tests.data.test_store import store_of

PAIRS = [(list(range(4, 5 + n % 6)), list(range(4, 5 + n % 4))) for n in range(50)]
"""The first half is of corpus 0, the rest of corpus 1, lines 1 to 25 each."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ParallelStore:
    return store_of(tmp_path_factory.mktemp("loader"), PAIRS)


def loader_of(
    store: ParallelStore, *, weights: tuple[float, ...] = (1, 1), **options: Any
) -> Loader:
    accumulate = options.pop("accumulate", 3)
    config = BatchConfig(max_tokens=40, accumulate=accumulate)
    return Loader(store, config, weights=weights, **{"seed": 1, **options})


def rows_of(loader: Loader, epoch: int) -> list[int]:
    return [int(row) for batch in loader.plan(epoch) for row in batch]


def stream(loader: Loader, start: Position, count: int) -> list[tuple[list[list[int]], Position]]:
    updates = islice(loader.updates(start), count)
    return [([batch.rows.tolist() for batch in batches], after) for batches, after in updates]


def test_an_epoch_reads_every_pair_once_in_another_order(store: ParallelStore) -> None:
    loader = loader_of(store)

    assert sorted(rows_of(loader, 0)) == sorted(rows_of(loader, 1)) == list(range(50))
    assert rows_of(loader, 0) != rows_of(loader, 1)
    assert rows_of(loader, 0) == rows_of(loader_of(store), 0)
    assert rows_of(loader, 0) != rows_of(loader_of(store, seed=2), 0)


@given(accumulate=st.integers(1, 9), skipped=st.integers(0, 25))
def test_from_any_position_the_stream_is_the_same(
    store: ParallelStore, accumulate: int, skipped: int
) -> None:
    """FAULT 1: a position is all that a resumed run needs."""
    loader = loader_of(store, accumulate=accumulate)
    whole = stream(loader, Position(), skipped + 5)
    position = whole[skipped - 1][1] if skipped else Position()

    assert stream(loader_of(store, accumulate=accumulate), position, 5) == whole[skipped:]


@given(accumulate=st.integers(1, 9))
def test_an_update_accumulates_and_never_mixes_two_epochs(
    store: ParallelStore, accumulate: int
) -> None:
    loader = loader_of(store, accumulate=accumulate)
    num_updates = loader.updates_per_epoch(0)
    updates = stream(loader, Position(), num_updates)
    sizes = [len(batches) for batches, _ in updates]

    assert sizes[:-1] == [accumulate] * (num_updates - 1)
    assert 1 <= sizes[-1] <= accumulate
    assert sum(sizes) == len(loader.plan(0))
    assert updates[-1][1] == Position(1, 0)
    assert sorted(row for batches, _ in updates for batch in batches for row in batch) == [
        *range(50)
    ]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_read_as_many_batches_each_and_together_all(
    store: ParallelStore, num_ranks: int
) -> None:
    """FAULT 27: where the batches cannot be shared out evenly, a few are read twice."""
    loaders = [loader_of(store, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    plans = [loader.plan(0) for loader in loaders]
    read = Counter(tuple(batch) for plan in plans for batch in plan)

    assert len({len(plan) for plan in plans}) == 1
    assert len({loader.updates_per_epoch(0) for loader in loaders}) == 1
    assert set(read) == {tuple(batch) for batch in loader_of(store).plan(0)}
    assert sum(read.values()) - len(read) < num_ranks


def test_weights_say_how_often_a_corpus_is_read(store: ParallelStore) -> None:
    read = Counter(row // 25 for row in rows_of(loader_of(store, weights=(0, 2.2)), 0))

    assert read == {1: 55}


def test_an_epoch_without_a_pair_names_the_remedy(store: ParallelStore) -> None:
    with pytest.raises(DataError, match=r"reads no pair: 50 with weights of 0, 0\.") as caught:
        loader_of(store, weights=(0, 0)).plan(0)
    assert "data.train.*.weight" in caught.value.fix


def test_auto_is_no_number(store: ParallelStore) -> None:
    config = BatchConfig(max_tokens="auto", tokens_per_update=100)
    with pytest.raises(ValueError, match="must be a number here"):
        Loader(store, config, weights=(1, 1), seed=1)


def test_subwords_are_drawn_for_the_epoch_that_is_read(store: ParallelStore) -> None:
    asked = []

    def resegment(side: int, epoch: int, _rows: Any, ids: Any) -> Any:
        asked.append((side, epoch))
        return ids

    loader = loader_of(store, resegment=cast(Resegmenter, resegment))
    next(loader.updates(Position(epoch=3)))

    assert {*asked} == {(0, 3), (1, 3)}


def test_batches_are_named_by_corpora_and_lines(store: ParallelStore) -> None:
    loader = loader_of(store)
    batches = [loader.batch(np.array([0, 30])), loader.batch(np.arange(40, 50))]

    assert loader.describe(batches) == (
        "data.train.0 lines 1; data.train.1 lines 6, 16, 17, 18, 19, 20, 21, 22 and 3 more"
    )
