"""Laws of the plan of an epoch."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.batching import epoch_rows, padding_waste, plan_batches
from nmt.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=150)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(pairs=PAIRS, max_tokens=st.integers(80, 400), seed=st.integers(0, 5))
def test_every_pair_lands_in_one_batch_within_budget(
    pairs: list[tuple[int, int]], max_tokens: int, seed: int
) -> None:
    source, target = arrays(pairs)
    plan = plan_batches(source, target, max_tokens=max_tokens, noise=0.1, seed=seed, epoch=0)

    assert sorted(int(row) for rows in plan for row in rows) == list(range(len(pairs)))
    for rows in plan:
        assert int(source[rows].sum() + target[rows].sum()) <= max_tokens


@given(pairs=PAIRS, num_ranks=st.integers(1, 4))
def test_ranks_share_the_plan_and_make_equally_many_steps(
    pairs: list[tuple[int, int]], num_ranks: int
) -> None:
    source, target = arrays(pairs)
    plans = [
        plan_batches(
            source,
            target,
            max_tokens=100,
            noise=0.1,
            seed=1,
            epoch=2,
            rank=rank,
            num_ranks=num_ranks,
        )
        for rank in range(num_ranks)
    ]

    assert len({len(plan) for plan in plans}) == 1
    assert {int(r) for plan in plans for rows in plan for r in rows} == set(range(len(pairs)))


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    random = np.random.default_rng(0)
    source, target = random.integers(5, 30, 300), random.integers(5, 30, 300)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        batches = plan_batches(source, target, max_tokens=300, noise=0.1, seed=seed, epoch=epoch)
        return [rows.tolist() for rows in batches]

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)


def test_a_pair_that_fits_no_batch_names_itself_and_the_remedy() -> None:
    source, target = arrays([(3, 3), (9, 4)])

    with pytest.raises(DataError, match=r"Pair 1 has 13 tokens.*8.*\n.*max_tokens"):
        plan_batches(source, target, max_tokens=8, noise=0, seed=0, epoch=0)


def test_weights_read_a_corpus_twice_and_a_new_half_each_epoch() -> None:
    corpus = np.array([0] * 10 + [1] * 10)

    rows = epoch_rows(corpus, [2, 0.5], seed=1, epoch=0)
    later = epoch_rows(corpus, [2, 0.5], seed=1, epoch=1)

    counts = np.bincount(rows, minlength=20)
    assert counts[:10].tolist() == [2] * 10
    assert sorted(counts[10:].tolist()) == [0] * 5 + [1] * 5
    assert rows.tolist() != later.tolist()


def test_padding_of_multi30k_stays_below_8_percent_at_4096_tokens(shared_data: Path) -> None:
    # Words instead of subwords: the shape of the lengths is what matters here.
    source, target = (
        np.array(
            [
                len(line.split()) + 3
                for line in gzip.decompress(
                    (shared_data / "multi30k" / f"train.{language}.gz").read_bytes()
                ).split(b"\n")[:-1]
            ]
        )
        for language in ("de", "en")
    )
    plan = plan_batches(source, target, max_tokens=4096, noise=0.1, seed=1, epoch=0)

    assert padding_waste(plan, source, target) <= 0.08
