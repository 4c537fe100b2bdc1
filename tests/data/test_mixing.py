"""Corpora are read in the proportions that were asked for, stage by stage, from any position."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config.data import BatchConfig, DataConfig
from nmt.data.loader import Loader, Position
from nmt.data.plan import Stage, build_stages, tempered_weights
from nmt.data.store import ParallelStore
from tests.data.test_store import store_of

CLEAN, NOISY = "clean", "noisy"
SIZES = (25, 25)


def data_of(**values: Any) -> DataConfig:
    train = [{"name": name, "demo": "train"} for name in (CLEAN, NOISY)]
    return DataConfig.model_validate({"train": train, "valid": {"demo": "valid"}, **values})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ParallelStore:
    pairs = [([5] * (1 + n % 7), [6] * (1 + n % 5)) for n in range(50)]
    return store_of(tmp_path_factory.mktemp("store") / "new", pairs)


def loader_of(store: ParallelStore, *stages: dict[str, Any], **options: Any) -> Loader:
    built = build_stages(data_of(stages=stages), SIZES, lower_is_better=False)
    config = BatchConfig(max_tokens=40)
    return Loader(store, config, weights=[1, 1], stages=built, seed=1, **options)


def read(loader: Loader, start: Position, number: int) -> list[tuple[list[int], Position]]:
    found = [
        ([int(row) for batch in batches for row in batch.rows], after)
        for batches, after in islice(loader.updates(start), number)
    ]
    assert len(found) == number
    return found


STAGES = (
    {"mix": {CLEAN: 0.5, NOISY: 0.5}, "until": {CLEAN: 2}},
    {"mix": {NOISY: 1}, "until": {"steps": 4}},
    {"mix": {CLEAN: 0.8, NOISY: 0.2}, "until": {"score": 20}},
    {"mix": {CLEAN: 1}},
)


def test_a_stage_ends_with_epochs_of_a_corpus_updates_or_a_score(store: ParallelStore) -> None:
    loader = loader_of(store, *STAGES)
    updates = read(loader, Position(), 60)
    of_stage: dict[int, list[int]] = {}
    for (rows, _), stage in zip(updates, [0, *(after.stage for _, after in updates)], strict=False):
        of_stage.setdefault(stage, []).extend(rows)
    counts = Counter(of_stage[0])
    num_updates = list(islice(loader.epoch_updates(), 4))  # of each epoch, through the stages
    assert num_updates[2] == 4
    assert [after.epoch for _, after in updates[sum(num_updates) - 2 :][:2]] == [3, 4]
    ranks = [loader_of(store, *STAGES, rank=rank, num_ranks=2) for rank in (0, 1)]
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
    last = updates[-1][1]
    assert loader.after_score(last, 19.9) == last
    after = loader.after_score(last, 20)
    assert after == Position(last.epoch + (last.batch > 0), 0, 3)
    assert max(row for rows, _ in read(loader, after, 30) for row in rows) < 25


@settings(max_examples=12)
@given(skipped=st.integers(0, 40))
def test_from_any_position_of_any_stage_the_stream_is_the_same(
    store: ParallelStore, skipped: int
) -> None:
    whole = read(loader_of(store, *STAGES), Position(), 46)
    position = whole[skipped - 1][1] if skipped else Position()

    assert read(loader_of(store, *STAGES), position, 46 - skipped) == whole[skipped:]
    ahead = loader_of(store, *STAGES, num_workers=1, resegment=None)
    assert read(ahead, position, 46 - skipped) == whole[skipped:]


def test_half_an_epoch_reads_half_a_corpus_beside_its_share_of_others() -> None:
    """1.5 epochs of 100 are two of 75; 25 of 100 pairs are of the other: 25 beside 75."""
    stages: list[dict[str, Any]] = [
        {"mix": {CLEAN: 3, NOISY: 1}, "until": {CLEAN: 1.5}},
        {"mix": {NOISY: 1}},
    ]
    (first, last) = build_stages(data_of(stages=stages), (100, 1000), lower_is_better=True)

    assert first == Stage([0.75, 0.025], epochs=2)
    assert last == Stage([0.0, 1.0])
    stages[0]["until"] = {"score": 2.5}  # a score is a quality
    for worse, score in ((False, 2.5), (True, -2.5)):
        first, _ = build_stages(data_of(stages=stages), SIZES, lower_is_better=worse)
        assert first.score == score


@given(
    sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=5),
    temperature=st.floats(1, 50),
)
def test_temperature_keeps_the_epoch_and_evens_the_sizes(
    sizes: list[int], temperature: float
) -> None:
    weights = tempered_weights([1.0] * len(sizes), sizes, temperature)
    pairs = [weight * size for weight, size in zip(weights, sizes, strict=True)]

    assert sum(pairs) == pytest.approx(sum(sizes))
    expected = (max(sizes) / min(sizes)) ** (1 / temperature)
    assert max(pairs) / min(pairs) == pytest.approx(expected)
    assert tempered_weights([0.3, 2], sizes[:2], 1) == [0.3, 2]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"mix": {"claen": 1}}], r"no training corpus is named claen .*Did you mean clean\?"),
        ([{"mix": {CLEAN: 1}}, {"mix": {CLEAN: 1}}], "stages.0.until: give one"),
        ([{"mix": {CLEAN: 1}, "until": {NOISY: 1}}], "noisy is no corpus of the mix"),
        ([{"mix": {CLEAN: 1}, "until": {"steps": 1, "score": 3}}], "stages.0.until: give one"),
        ([{"mix": {CLEAN: 1}, "until": {"steps": 1.5}}], "steps must be a whole number"),
    ],
)
def test_wrong_stages_are_named(stages: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        data_of(stages=stages)
    with pytest.raises(ValueError, match="temperature and stages"):
        data_of(stages=[{"mix": {CLEAN: 1}}], temperature=2.0)
