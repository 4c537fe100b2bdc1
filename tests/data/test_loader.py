"""The stream of batches: every pair once an epoch, and from any position the same stream."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import BatchConfig, DataConfig
from nmt.data import plan
from nmt.data.loader import Loader, Position
from nmt.data.plan import Stage, build_stages, epoch_random, plan_batches, tempered_weights
from nmt.data.store import ParallelStore
from nmt.errors import DataError
from nmt.files.lines import read_lines
from nmt.text import BOS_ID
from tests.data.test_store import store_of
from tests.examples import FEW

PAIRS = [(list(range(4, 5 + n % 6)), list(range(4, 5 + n % 4))) for n in range(50)]
"""The first half is of corpus 0, the rest of corpus 1, lines 1 to 25 each."""
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=150)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(
    pairs=LENGTHS,
    most=st.one_of(st.none(), st.integers(1, 20)),
    max_tokens=st.sampled_from([None, 80, 300]),
    seed=st.integers(0, 5),
)
def test_every_pair_is_in_one_batch_within_budget_with_pairs_of_similar_length(
    pairs: list[tuple[int, int]], most: int | None, max_tokens: int | None, seed: int
) -> None:
    source, target = arrays(pairs)
    limits = {"max_tokens": max_tokens, "max_sentences": most}
    plan = plan_batches(source, target, noise=0, random=epoch_random(seed, 0), **limits)
    assert sorted(int(row) for rows in plan for row in rows) == list(range(len(pairs)))
    assert all(len(rows) <= (most or len(pairs)) for rows in plan)
    longest = [sorted(int(max(source[row], target[row])) for row in rows) for rows in plan]
    assert list(itertools.chain(*sorted(longest))) == sorted(itertools.chain(*longest))
    if max_tokens is None:  # all are full but the last one by length
        assert len(plan) == -(-len(pairs) // (most or max(len(pairs), 1)))
    else:
        assert all(int(source[rows].sum() + target[rows].sum()) <= max_tokens for rows in plan)


def test_a_pair_above_max_tokens_is_an_error_with_a_fix() -> None:
    source, target = arrays([(3, 3), (9, 4)])
    with pytest.raises(DataError, match=r"A sentence pair has 13 tokens.*8.*\n.*max_tokens"):
        plan_batches(source, target, max_tokens=8, noise=0, random=epoch_random(0, 0))


def test_padding_of_multi30k_stays_below_8_percent_at_4096_tokens(shared_data: Path) -> None:
    # Words instead of subwords: the shape of the lengths is what matters here.
    lines = [read_lines(shared_data / "multi30k" / f"train.{code}.gz") for code in ("de", "en")]
    source, target = (np.array([len(line.split()) + 3 for line in side]) for side in lines)
    plan = plan_batches(source, target, max_tokens=4096, noise=0.1, random=epoch_random(1, 0))
    cells = sum(len(rows) * int(side[rows].max()) for rows in plan for side in (source, target))
    assert 1 - (source.sum() + target.sum()) / cells <= 0.08


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ParallelStore:
    return store_of(tmp_path_factory.mktemp("loader"), PAIRS)


def loader_of(
    store: ParallelStore, *, weights: tuple[float, ...] = (1, 1), **options: Any
) -> Loader:
    config = BatchConfig(max_tokens=40, gradient_accumulation=options.pop("accumulate", 3))
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


@FEW
@given(accumulate=st.integers(1, 9), skipped=st.integers(0, 25))
def test_from_any_position_the_stream_is_the_same(
    store: ParallelStore, accumulate: int, skipped: int
) -> None:
    """FAULT 1: a position is all that a resumed run needs."""
    loader = loader_of(store, accumulate=accumulate)
    num_updates = next(loader.epoch_updates())
    whole = stream(loader, Position(), max(skipped + 5, num_updates))
    # An update accumulates, and never mixes two epochs.
    sizes = [len(batches) for batches, _ in whole[:num_updates]]
    assert sizes[:-1] == [accumulate] * (num_updates - 1)
    assert 1 <= sizes[-1] <= accumulate
    assert sum(sizes) == len(loader.plan(0))
    assert whole[num_updates - 1][1] == Position(1, 0)
    # The number of the epoch of the last update, from 1.
    epochs = [after.current_epoch for _, after in whole]
    assert epochs[:num_updates] == [1] * num_updates
    assert epochs[num_updates : 2 * num_updates] == [2] * len(epochs[num_updates : 2 * num_updates])
    assert Position().current_epoch == 0
    position = whole[skipped - 1][1] if skipped else Position()
    again = stream(loader_of(store, accumulate=accumulate), position, 5)
    assert again == whole[skipped : skipped + 5]


@pytest.mark.parametrize("num_ranks", [2, 3, 99])
def test_ranks_read_equally_many_batches_and_together_all_pairs(
    store: ParallelStore, num_ranks: int
) -> None:
    """FAULT 27: where the batches cannot be shared out evenly, a few are read twice."""
    loaders = [loader_of(store, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    plans = [loader.plan(0) for loader in loaders]
    read = Counter(tuple(batch) for plan in plans for batch in plan)
    assert len({len(plan) for plan in plans}) == 1
    assert len({next(loader.epoch_updates()) for loader in loaders}) == 1
    assert set(read) == {tuple(batch) for batch in loader_of(store).plan(0)}
    assert sum(read.values()) - len(read) < num_ranks


def test_weights_read_a_corpus_twice_and_a_new_half_each_epoch(store: ParallelStore) -> None:
    loader = loader_of(store, weights=(2, 0.5))
    counts = np.bincount(rows_of(loader, 0), minlength=50)
    assert counts[:25].tolist() == [2] * 25
    assert sorted(counts[25:].tolist()) == [0] * 13 + [1] * 12
    assert counts.tolist() != np.bincount(rows_of(loader, 1), minlength=50).tolist()
    assert Counter(row // 25 for row in rows_of(loader_of(store, weights=(0, 2.2)), 0)) == {1: 55}


@given(
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=5),
    weights=st.lists(st.sampled_from([0.25, 1, 1.5, 3]), min_size=5, max_size=5),
    share=st.floats(0.01, 0.95),
    num_others=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_its_share_of_replay_and_reads_the_others_as_without(
    sizes: list[int], weights: list[float], share: float, num_others: int, epoch: int
) -> None:
    """Rounded to whole pairs of each corpus; within replay, by weight and size."""
    num_others, weights = min(num_others, len(sizes) - 1), weights[: len(sizes)]
    corpus = np.repeat(np.arange(len(sizes)), sizes)
    mixed = plan.replay_weights(weights, sizes, num_others, share)
    rows, plain = (
        plan.epoch_rows(corpus, x, seed=1, epoch=epoch)
        for x in (mixed, [*weights[:num_others], *[0] * 5])
    )
    rows, plain = (np.arange(len(corpus)) if x is None else x for x in (rows, plain))
    replayed = corpus[rows] >= num_others
    assert rows[~replayed].tolist() == plain[corpus[plain] < num_others].tolist()
    wanted = share * len(rows)
    assert abs(replayed.sum() - wanted) <= len(sizes) / 2 * (1 + share / (1 - share))
    each = np.bincount(corpus[rows], minlength=len(sizes))[num_others:]
    parts = np.multiply(weights, sizes)[num_others:]
    assert np.abs(each - parts / parts.sum() * each.sum()).max() <= len(sizes)


def test_weights_that_select_no_pair_are_an_error_with_a_fix(store: ParallelStore) -> None:
    with pytest.raises(DataError, match=r"\(0, 0\) select none of 50") as caught:
        loader_of(store, weights=(0, 0)).plan(0)
    assert "data.train.*.weight" in caught.value.fix


def test_sources_may_begin_with_bos(store: ParallelStore) -> None:
    plain, marked = (loader_of(store, source_bos=source_bos) for source_bos in (False, True))
    rows = np.array([3, 0, 17])
    batch, other = plain.batch(rows), marked.batch(rows)
    assert other.source.rows() == [[BOS_ID, *ids] for ids in batch.source.rows()]
    assert other.source.max_length == max(map(len, other.source.rows()))
    assert other.target.rows() == batch.target.rows()
    assert torch.equal(other.gold, batch.gold)
    sizes = [len(batch.source.ids) + len(batch.gold) for batch in map(marked.batch, marked.plan(0))]
    assert max(sizes) <= 40  # BOS counts
    source, target = marked.lengths(rows)
    assert source.tolist() == list(map(len, other.source.rows()))
    assert target.tolist() == list(map(len, other.target.rows()))


def test_batches_are_named_by_corpora_and_lines(store: ParallelStore) -> None:
    loader = loader_of(store)
    assert loader.describe([loader.batch(np.array([0, 30])), loader.batch(np.arange(40, 50))]) == (
        "data.train.0 lines 1; data.train.1 lines 6, 16, 17, 18, 19, 20, 21, 22 and 3 more"
    )
    replay = loader_of(store, keys=("data.train.0", "data.replay.train.0"))
    text = replay.describe([replay.batch(np.array([49, 2]))])
    assert text == "data.train.0 lines 3; data.replay.train.0 lines 25"


@pytest.mark.parametrize("rows", [[7, 3], [0, 17, 4, 30, 11]])
def test_halves_of_a_batch_are_batches_of_half_the_rows(
    store: ParallelStore, rows: list[int]
) -> None:
    loader = loader_of(store)
    middle = len(rows) // 2
    halves = loader.batch(np.array(rows)).halves()
    for half, own in zip(halves, (rows[:middle], rows[middle:]), strict=True):
        expected = loader.batch(np.array(own))
        assert half.rows.tolist() == own
        assert half.source.rows() == expected.source.rows()
        assert half.target.rows() == expected.target.rows()
        assert half.gold.tolist() == expected.gold.tolist()


@given(
    pairs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=400),
    longest=st.sampled_from([4, 300]),
    noise=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 9),
)
def test_the_order_by_length_is_that_of_a_sort_by_four_keys(
    pairs: list[tuple[int, int]], longest: int, noise: float, seed: int
) -> None:
    source, target = arrays([*pairs, (longest, longest)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_CHUNK_ROWS", 7)
        found = plan.length_order(source, target, noise=noise, random=np.random.default_rng(seed))
    random = np.random.default_rng(seed)
    spread = random.random(len(source), dtype=np.float32) - 0.5
    key = np.rint(np.maximum(source, target) * (1 + noise * spread))
    wanted = np.lexsort((random.random(len(source)), target, source, key))
    assert found.tolist() == wanted.tolist()


def test_the_plan_of_older_releases_stays(store: ParallelStore) -> None:
    """Runs resume by a position alone: another order would train on other pairs."""
    plan = loader_of(store, weights=(1, 2.5)).plan(3)
    assert [batch.tolist() for batch in plan[:3]] == [
        [34, 46, 34, 22],
        [31, 7, 43, 45, 21],
        [35, 11, 23],
    ]


CLEAN, NOISY = "clean", "noisy"


def data_of(**values: Any) -> DataConfig:
    train = [{"name": name, "demo": "train"} for name in (CLEAN, NOISY)]
    return DataConfig.model_validate({"train": train, "valid": {"demo": "valid"}, **values})


def staged(store: ParallelStore, *stages: dict[str, Any], **options: Any) -> Loader:
    built = build_stages(data_of(stages=stages), (25, 25))
    return loader_of(store, stages=built, accumulate=1, **options)


def read(loader: Loader, start: Position, number: int) -> list[tuple[list[int], Position]]:
    return [(list(itertools.chain(*rows)), after) for rows, after in stream(loader, start, number)]


STAGES = (
    {"mix": {CLEAN: 0.5, NOISY: 0.5}, "until": {CLEAN: 2}},
    {"mix": {NOISY: 1}, "until": {"steps": 4}},
    {"mix": {CLEAN: 0.8, NOISY: 0.2}},
)


def test_a_stage_ends_with_epochs_of_a_corpus_or_updates(store: ParallelStore) -> None:
    loader = staged(store, *STAGES)
    updates = read(loader, Position(), 60)
    of_stage: dict[int, list[int]] = {}
    for (rows, _), stage in zip(updates, [0, *(after.stage for _, after in updates)], strict=False):
        of_stage.setdefault(stage, []).extend(rows)
    counts = Counter(of_stage[0])
    num_updates = list(islice(loader.epoch_updates(), 4))  # of each epoch, through the stages
    assert num_updates[2] == 4
    assert [after.epoch for _, after in updates[sum(num_updates) - 2 :][:2]] == [3, 4]
    ranks = [staged(store, *STAGES, rank=rank, num_ranks=2) for rank in (0, 1)]
    first, second = ([after for _, after in read(each, Position(), 30)] for each in ranks)
    assert first == second  # they change stage together
    assert first[-1].stage == 2
    assert {*counts.values()} == {2}
    assert len(counts) == 50
    assert [after.stage for _, after in updates].count(1) == 4
    assert min(of_stage[1]) >= 25
    share = sum(row < 25 for row in of_stage[2]) / len(of_stage[2])
    assert share == pytest.approx(0.8, abs=0.05)
    assert [*of_stage] == [0, 1, 2]


@FEW
@given(skipped=st.integers(0, 40))
def test_from_any_place_of_a_stage_the_stream_is_equal(store: ParallelStore, skipped: int) -> None:
    whole = read(staged(store, *STAGES), Position(), 46)
    position = whole[skipped - 1][1] if skipped else Position()
    assert read(staged(store, *STAGES), position, 46 - skipped) == whole[skipped:]
    ahead = staged(store, *STAGES, num_workers=1, changes=())
    assert read(ahead, position, 46 - skipped) == whole[skipped:]


def test_half_an_epoch_reads_half_a_corpus_with_its_share_of_other_corpora() -> None:
    """1.5 epochs of 100 are two of 75; 25 of 100 pairs are of the other: 25 beside 75."""
    stages: list[dict[str, Any]] = [
        {"mix": {CLEAN: 3, NOISY: 1}, "until": {CLEAN: 1.5}},
        {"mix": {NOISY: 1}},
    ]
    (first, last) = build_stages(data_of(stages=stages), (100, 1000))
    assert first == Stage([0.75, 0.025], epochs=2)
    assert last == Stage([0.0, 1.0])


@given(sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=5), temperature=st.floats(1, 50))
def test_temperature_keeps_the_epoch_and_evens_sizes(sizes: list[int], temperature: float) -> None:
    weights = tempered_weights([1.0] * len(sizes), sizes, temperature)
    pairs = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    assert sum(pairs) == pytest.approx(sum(sizes))
    expected = (max(sizes) / min(sizes)) ** (1 / temperature)
    assert max(pairs) / min(pairs) == pytest.approx(expected)
    assert tempered_weights([0.3, 2], sizes[:2], 1) == [0.3, 2]


def test_an_epoch_reads_corpora_by_weight_temperature_and_replay() -> None:
    """Corpora of 100 and 900 pairs, with weights of 4 and 1: 400 and 900 pairs of an epoch."""
    train = [{"name": CLEAN, "demo": "train", "weight": 4}, {"name": NOISY, "demo": "train"}]
    assert plan.epoch_weights(data_of(train=train), (100, 900)) == [4, 1]
    # Shares of 20 and 30 (square roots), 1300 pairs: 520 and 780.
    flat = data_of(train=train, temperature=2)
    assert plan.epoch_weights(flat, (100, 900)) == pytest.approx([5.2, 780 / 900])
    # A third of the pairs is replay: 650 of 50 with a weight of 2 and 550: 100 and 550 are 650.
    old = [{"demo": "test", "weight": 2}, {"demo": "valid"}]
    mixed = data_of(train=train, replay={"train": old, "share": 1 / 3})
    weights = plan.epoch_weights(mixed, (100, 900, 50, 550))
    assert weights == pytest.approx([4, 1, 2, 1])
    mixed = data_of(train=train, replay={"train": old, "share": 0.5})
    assert plan.epoch_weights(mixed, (100, 900, 50, 550)) == pytest.approx([4, 1, 4, 2])


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"mix": {"claen": 1}}], r"no training corpus is named claen .*Did you mean clean\?"),
        ([{"mix": {CLEAN: 1}, "until": {NOISY: 1}}], "noisy is not steps or a corpus"),
        ([{"mix": {CLEAN: 1}, "until": {"steps": 1, CLEAN: 3}}], "until: set exactly one"),
        (
            [{"mix": {CLEAN: 1}, "until": {"score": 3}}],
            "until: stages can no longer end at a score",
        ),
        ([{"mix": {CLEAN: 1}, "until": {"steps": 1.5}}], "steps must be a whole number"),
    ],
)
def test_wrong_stages_are_named(stages: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        data_of(stages=stages)
    with pytest.raises(ValueError, match="temperature and stages"):
        data_of(stages=[{"mix": {CLEAN: 1}}], temperature=2.0)


def test_each_epoch_is_changed_with_its_own_number(store: ParallelStore) -> None:
    """Otherwise, noise and BPE-dropout would be the same in every epoch."""
    drawn: list[tuple[int, int]] = []

    def resegment(epoch: int, rows: Any, sides: Any) -> Any:
        drawn.append((epoch, len(rows)))
        return sides

    loader = loader_of(store, changes=[resegment])
    first = loader.updates(Position())
    while (position := next(first)[1]).epoch < 2:
        assert drawn[-1][0] in (position.epoch, position.epoch - 1)
    num_pairs = Counter[int]()
    for epoch, count in drawn:
        num_pairs[epoch] += count
    assert num_pairs == {0: len(PAIRS), 1: len(PAIRS)}
    resumed = loader.updates(replace(position, epoch=7))
    next(resumed)
    assert drawn[-1][0] == 7
