"""Alternatives beside plain Python. Greedy search is tested beside beam search in `test_loop`."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from nmt.search.hypothesis import Constraints
from nmt.search.loop import search
from tests.search.naive import Naive
from tests.search.test_loop import VOCAB_SIZE, free, rules, seeds
from tests.search.toys import TableStepper, options_of, random_table, sources


@given(seed=seeds, own=free, options=rules)
def test_alternatives_are_the_best_next_tokens_completed_greedily(
    seed: int, own: Constraints, options: dict[str, Any]
) -> None:
    options = {**options, "prefix_bias_beta": 0.0}
    config = options_of(return_alternatives=True, n_best=5, **options)
    table = random_table(seed, VOCAB_SIZE)
    source = sources([4], seed)
    (found,) = search(TableStepper(table), source, config, [own])
    naive = Naive(table, tuple(source.ids.tolist()), VOCAB_SIZE, config, own)
    values = naive.next_log_probs(own.prefix)
    order = sorted(range(VOCAB_SIZE), key=lambda token: -values[token])
    possible = [token for token in order if values[token] > -float("inf")]
    outputs = [naive.greedy((*own.prefix, token)) for token in possible[:5]]
    assert [hypothesis.ids for hypothesis in found] == [ids for ids in outputs if ids is not None]
