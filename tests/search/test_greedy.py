"""Greedy search on tables."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.text import BOS_ID, EOS_ID
from tests.search.toys import Table, TableStepper, greedy_search, ids_of, random_table, sources

CONFIG = DecodingConfig(beam_size=1, max_length_factor=1.0, max_length_offset=3)


def by_hand(table: Table, source: tuple[int, ...], longest: int) -> tuple[tuple[int, ...], float]:
    """The most probable token again and again."""
    ids: list[int] = []
    total = 0.0
    while True:
        scores = table((*source, BOS_ID, *ids)).clone()
        scores[:EOS_ID] = -torch.inf
        if len(ids) + 1 == longest:
            scores[EOS_ID + 1 :] = -torch.inf
        token = int(scores.argmax())
        total += float(scores[token])
        if token == EOS_ID:
            return tuple(ids), total
        ids.append(token)


@pytest.mark.parametrize("seed", range(10))
def test_the_most_probable_token_is_taken_again_and_again(seed: int) -> None:
    table = random_table(seed, 9)
    source, lengths = sources([4, 9, 1, 6], seed)
    results = greedy_search(TableStepper(table), source, lengths, CONFIG)
    for row, length, (found,) in zip(source.tolist(), lengths.tolist(), results, strict=True):
        ids, total = by_hand(table, tuple(row[:length]), length - 1 + 3 + 1)
        assert found.ids == ids
        assert found.log_prob == pytest.approx(total, abs=1e-5)
        assert found.score == pytest.approx(total / (len(ids) + 1), abs=1e-5)


def test_results_do_not_depend_on_who_else_is_in_the_batch() -> None:
    table = random_table(5, 12)
    source, lengths = sources([3, 8, 5, 2, 8])
    together = greedy_search(TableStepper(table), source, lengths, CONFIG)
    alone = [
        greedy_search(TableStepper(table), source[i : i + 1], lengths[i : i + 1], CONFIG)[0]
        for i in range(len(source))
    ]
    assert ids_of(together) == ids_of(alone)


def test_finished_sentences_leave_the_batch() -> None:
    stepper = TableStepper(random_table(3, 6))
    source, lengths = sources([2, 4, 6, 8, 10])
    results = greedy_search(stepper, source, lengths, CONFIG)
    ends = [len(found.ids) + 1 for (found,) in results]
    assert stepper.rows == [sum(end >= step for end in ends) for step in range(1, max(ends) + 1)]
    assert stepper.rows[-1] < 5


def test_a_search_that_cannot_go_on_ends_without_a_translation() -> None:
    def nothing(_: tuple[int, ...]) -> Tensor:
        return torch.full((7,), -torch.inf)

    source, lengths = sources([3, 2])
    assert greedy_search(TableStepper(nothing), source, lengths, CONFIG) == [[], []]


def test_no_sentences_give_no_results() -> None:
    stepper = TableStepper(random_table(1, 6))
    empty = torch.zeros(0, 3, dtype=torch.int64)
    assert greedy_search(stepper, empty, torch.zeros(0, dtype=torch.int64), CONFIG) == []
