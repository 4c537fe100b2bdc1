"""Diverse beam search beside plain Python."""

from __future__ import annotations

import math
from collections import Counter
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.decoding import DecodingConfig
from nmt.text import EOS_ID
from tests.search.naive import Naive
from tests.search.toys import (
    FIRST_WORD,
    TableStepper,
    beam_search,
    ids_of,
    random_table,
    search_by,
    sources,
)

Ids = tuple[int, ...]
seeds = st.integers(0, 10**6)


def settings(**changes: Any) -> DecodingConfig:
    """Short outputs, with changes."""
    values = {"max_length_factor": 1.0, "max_length_offset": 3, **changes}
    return DecodingConfig.model_validate(values)


def by_hand(naive: Naive) -> list[Ids]:
    """Groups one after the other, each to its end; no early stop but that of full groups."""
    config = naive.config
    size = config.beam_size // config.diverse_beam_groups
    taken: list[Counter[int]] = [Counter() for _ in range(naive.limits[1])]
    found: list[list[tuple[float, Ids]]] = []
    for _ in range(config.diverse_beam_groups):
        live: list[tuple[float, Ids]] = [(0.0, ())]
        ended: list[tuple[float, Ids]] = []
        for counts in taken:
            ways = []
            for total, ids in live:
                for token, value in enumerate(naive.next_log_probs(ids)):
                    if value > -math.inf:
                        penalty = config.diverse_beam_strength * counts[token]
                        ways.append((total + value - penalty, total + value, (*ids, token)))
            ways.sort(key=lambda way: -way[0])
            ended += [(total, ids[:-1]) for _, total, ids in ways[:size] if ids[-1] == EOS_ID]
            live = [(total, ids) for _, total, ids in ways if ids[-1] != EOS_ID][:size]
            counts.update(ids[-1] for _, ids in live)
            if len(ended) >= size:
                break
        ended.sort(key=lambda own: -own[0] / (len(own[1]) + 1))
        found.append(ended)
    merged = {own[1]: own for group in zip_longest(*found) for own in group if own}
    best = list(merged.values())[: config.n_best]
    return [ids for _, ids in sorted(best, key=lambda own: -own[0] / (len(own[1]) + 1))]


@given(
    seed=seeds,
    groups=st.integers(2, 4),
    size=st.integers(1, 3),
    strength=st.sampled_from([0.0, 0.5, 3.0]),
    n_best=st.integers(1, 4),
)
def test_groups_choose_one_after_the_other(
    seed: int, groups: int, size: int, strength: float, n_best: int
) -> None:
    vocab_size = FIRST_WORD + 4
    table = random_table(seed, vocab_size)
    source, lengths = sources([4, 2], seed)
    config = settings(
        beam_size=groups * size, n_best=min(n_best, groups * size), diverse_beam_groups=groups,
        diverse_beam_strength=strength,
    )  # fmt: skip
    found = search_by("diverse")(TableStepper(table), source, lengths, config)
    for row, length in enumerate(lengths.tolist()):
        naive = Naive(table, tuple(source[row, :length].tolist()), vocab_size, config)
        assert ids_of(found)[row] == by_hand(naive)
        for hypothesis in found[row]:
            assert hypothesis.log_prob == pytest.approx(naive.log_prob(hypothesis.ids), abs=1e-4)


@given(seed=seeds, strength=st.sampled_from([0.5, 4.0]))
def test_the_first_group_is_plain_beam_search(seed: int, strength: float) -> None:
    stepper, inputs = TableStepper(random_table(seed, 9)), sources([5, 2, 7], seed)
    plain = beam_search(stepper, *inputs, settings(beam_size=2, n_best=2))
    options = {"diverse_beam_groups": 3, "diverse_beam_strength": strength}
    diverse = search_by("diverse")(stepper, *inputs, settings(beam_size=6, n_best=6, **options))
    for few, many in zip(plain, diverse, strict=True):
        assert set(few) <= set(many)


def test_outputs_are_more_diverse_with_more_strength() -> None:
    """A few still meet: the end of an output is not discouraged."""
    kinds = []
    for strength in (0.0, 1.0, 5.0):
        config = settings(
            beam_size=6, n_best=6, diverse_beam_groups=6, diverse_beam_strength=strength
        )
        results = [
            search_by("diverse")(TableStepper(random_table(seed, 12)), *sources([6], seed), config)[
                0
            ]
            for seed in range(10)
        ]
        kinds.append(sum(len(found) for found in results))
    assert kinds[0] == 10  # groups without strength all find the same
    assert min(kinds[1:]) > 30
