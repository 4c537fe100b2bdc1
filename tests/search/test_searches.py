"""All searches with all rules beside plain Python, one sentence after another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.search.constraints import NONE, Constraints, contains
from nmt.search.hypothesis import Hypothesis
from nmt.search.loop import search
from nmt.search.rules import Rules
from nmt.text import UNK_ID
from tests.search.naive import Naive
from tests.search.toys import (
    FIRST_WORD,
    TableStepper,
    beam_search,
    greedy_search,
    ids_of,
    random_table,
    sources,
)

VOCAB_SIZE = FIRST_WORD + 3
WORDS = range(FIRST_WORD, VOCAB_SIZE)

seeds = st.integers(0, 10**6)
phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple)
rules = st.fixed_dictionaries({
    "no_repeat_ngram_size": st.integers(0, 3),
    "repetition_penalty": st.sampled_from([1.0, 0.7, 1.4]),
    "prefix_bias_beta": st.sampled_from([0.0, 0.0, 0.3]),
    "length_penalty": st.sampled_from([0.0, 1.0]),
    "min_length_factor": st.sampled_from([0.0, 0.6]),
})  # fmt: skip
prefixes = st.lists(st.sampled_from([UNK_ID, *WORDS]), max_size=3).map(tuple)
wishes = st.builds(Constraints, prefix=prefixes, forbidden=st.lists(phrases, max_size=3).map(tuple))
enumerable = wishes.filter(lambda own: UNK_ID not in own.prefix)
required = st.builds(
    Constraints,
    prefix=st.lists(st.sampled_from(WORDS), max_size=1).map(tuple),
    required=st.lists(phrases.filter(lambda p: len(p) < 3), min_size=0, max_size=2).map(tuple),
    forbidden=st.lists(phrases.filter(lambda p: len(p) > 1), max_size=1).map(tuple),
)
KINDS: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 4, "n_best": 3},
    {"beam_size": 4, "patience": 2.0},
    {"beam_size": 6, "n_best": 4, "diverse_beam_groups": 3},
    {"sampling": True, "n_best": 3, "top_p": 0.8},
    {"sampling": True, "n_best": 2, "top_k": 3, "temperature": 0.7},
    {"return_alternatives": True, "n_best": 3},
]


def options_of(**changes: Any) -> DecodingConfig:
    """Outputs of one token more than the source, with changes."""
    values = {"max_length_factor": 1.0, "max_length_offset": 1, **changes}
    return DecodingConfig.model_validate(values)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.ids for h in found] == [h.ids for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


@settings(max_examples=30)
@given(seed=seeds, options=rules, own=st.lists(enumerable, min_size=1, max_size=3))
def test_a_beam_wide_enough_finds_the_best_outputs_that_the_rules_allow(
    seed: int, options: dict[str, Any], own: list[Constraints]
) -> None:
    table = random_table(seed, VOCAB_SIZE)
    source, lengths = sources([3, 2, 4][: len(own)], seed)
    config = options_of(beam_size=256, n_best=3, **options)
    found = search(TableStepper(table), source, lengths, config, own)
    for row, length in enumerate(lengths.tolist()):
        ids = tuple(source[row, :length].tolist())
        naive = Naive(table, ids, VOCAB_SIZE, config, own[row])
        assert_same(found[row], naive.every_output()[:3])


@given(seed=seeds, options=rules, own=st.lists(wishes, min_size=1, max_size=3))
def test_greedy_search_is_a_beam_of_one_and_takes_the_most_probable_token(
    seed: int, options: dict[str, Any], own: list[Constraints]
) -> None:
    table = random_table(seed, VOCAB_SIZE)
    source, lengths = sources([3, 6, 1][: len(own)], seed)
    config = options_of(beam_size=1, **options)
    found = greedy_search(TableStepper(table), source, lengths, config, own)
    assert beam_search(TableStepper(table), source, lengths, config, own) == found
    for row, length in enumerate(lengths.tolist()):
        ids = tuple(source[row, :length].tolist())
        naive = Naive(table, ids, VOCAB_SIZE, config, own[row]).greedy()
        assert ids_of(found)[row] == ([] if naive is None else [naive])


@given(
    seed=seeds,
    kind=st.sampled_from(KINDS),
    options=rules,
    own=st.lists(wishes, min_size=4, max_size=4),
    grain=st.sampled_from([0.0, 2.0]),
)
def test_results_do_not_depend_on_who_else_is_in_the_batch(
    seed: int, kind: dict[str, Any], options: dict[str, Any], own: list[Constraints], grain: float
) -> None:
    table = random_table(seed, VOCAB_SIZE, grain=grain)
    if kind.get("return_alternatives"):
        options = {**options, "prefix_bias_beta": 0.0}
    config = options_of(**kind, **options)
    source, lengths = sources([3, 5, 1, 4], seed)
    together = search(TableStepper(table), source, lengths, config, own)
    for order in ([2], [3, 0], [1]):
        some = search(
            TableStepper(table), source[order], lengths[order], config, [own[i] for i in order]
        )
        assert some == [together[i] for i in order]


@given(
    seed=seeds,
    beam_size=st.integers(1, 6),
    own=st.lists(required, min_size=3, max_size=3),
    grain=st.sampled_from([0.0, 2.0]),
)
def test_with_required_phrases_too(
    seed: int, beam_size: int, own: list[Constraints], grain: float
) -> None:
    """And a sentence without them gets what plain beam search finds."""
    table = random_table(seed, VOCAB_SIZE, grain=grain)
    config = options_of(beam_size=beam_size, n_best=beam_size)
    source, lengths = sources([3, 5, 1], seed)
    own = [own[0], NONE, own[2]]
    together = search(TableStepper(table), source, lengths, config, own)
    for row in range(3):
        one = slice(row, row + 1)
        alone = search(TableStepper(table), source[one], lengths[one], config, own[one])
        assert alone == together[one]
    one = slice(1, 2)
    assert beam_search(TableStepper(table), source[one], lengths[one], config) == together[one]


@settings(max_examples=40)
@given(seed=seeds, options=rules, own=required)
def test_a_beam_wide_enough_finds_the_best_outputs_with_the_phrases(
    seed: int, options: dict[str, Any], own: Constraints
) -> None:
    table = random_table(seed, VOCAB_SIZE)
    source, lengths = sources([3], seed)
    config = options_of(beam_size=256, n_best=3, **options)
    naive = Naive(table, tuple(source[0].tolist()), VOCAB_SIZE, config, own)
    assume(naive.limits[1] <= 7)
    (found,) = search(TableStepper(table), source, lengths, config, [own])
    assert_same(found, naive.every_output()[:3])


@given(seed=seeds, beam_size=st.integers(1, 5), own=required)
def test_every_output_contains_the_phrases_however_narrow_the_beam(
    seed: int, beam_size: int, own: Constraints
) -> None:
    """There is always one, if nothing is forbidden."""
    table = random_table(seed, VOCAB_SIZE)
    config = options_of(beam_size=beam_size, n_best=beam_size)
    (found,) = search(TableStepper(table), *sources([3], seed), config, [own])
    assert found or own.forbidden
    for hypothesis in found:
        assert hypothesis.ids[: len(own.prefix)] == own.prefix
        assert all(contains(hypothesis.ids, phrase) for phrase in own.required)
        assert not any(contains(hypothesis.ids, phrase) for phrase in own.forbidden)


@given(seed=seeds, own=wishes, options=rules)
def test_alternatives_are_the_best_next_tokens_completed_greedily(
    seed: int, own: Constraints, options: dict[str, Any]
) -> None:
    options = {**options, "prefix_bias_beta": 0.0}
    config = options_of(return_alternatives=True, n_best=5, **options)
    table = random_table(seed, VOCAB_SIZE)
    source, lengths = sources([4], seed)
    (found,) = search(TableStepper(table), source, lengths, config, [own])
    naive = Naive(table, tuple(source[0].tolist()), VOCAB_SIZE, config, own)
    values = naive.next_log_probs(own.prefix)
    order = sorted(range(VOCAB_SIZE), key=lambda token: -values[token])
    possible = [token for token in order if values[token] > -torch.inf]
    outputs = [naive.greedy((*own.prefix, token)) for token in possible[:5]]
    assert [hypothesis.ids for hypothesis in found] == [ids for ids in outputs if ids is not None]


def test_more_patience_finds_no_worse_and_less_stops_earlier() -> None:
    rows, scores = [], []
    for patience in (0.25, 1.0, 3.0):
        config = options_of(beam_size=4, patience=patience, max_length_offset=12)
        found, steps = [], 0
        for seed in range(30):
            stepper = TableStepper(random_table(seed, 8, sharpness=3.0))
            found += search(stepper, *sources([5, 2, 7], seed), config)
            steps += sum(stepper.rows)
        rows.append(steps)
        scores.append([best[0].score for best in found])
    assert rows == sorted(rows)
    assert rows[0] < rows[2]
    for less, more in itertools.pairwise(scores):
        assert all(a <= b for a, b in zip(less, more, strict=True))
    assert scores[0] != scores[1]


def test_rules_that_are_off_cost_nothing() -> None:
    nothing = Rules(torch.tensor([3]), DecodingConfig(), [NONE])
    assert (nothing._edits, nothing._bias, nothing._prefix) == ((), None, None)


@pytest.mark.parametrize("kind", KINDS[3:])
def test_what_cannot_see_to_required_phrases_says_so(kind: dict[str, Any]) -> None:
    own = [Constraints(required=((5,),))]
    with pytest.raises(ConfigError, match="does not go with required phrases"):
        search(TableStepper(random_table(1, 8)), *sources([3]), options_of(**kind), own)
