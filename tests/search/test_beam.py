"""Beam search beside greedy search, exhaustive search, and itself without shortcuts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.beam import expand
from nmt.search.hypothesis import Hypothesis
from nmt.search.loop import Stepper
from nmt.search.selector import FinishedHypotheses
from nmt.text import EOS_ID
from tests.search.toys import (
    FIRST_WORD,
    TableStepper,
    ToyState,
    all_hypotheses,
    beam_search,
    greedy_search,
    ids_of,
    random_table,
    sources,
)

seeds = st.integers(0, 10**6)
PENALTIES = [("power", 0.0), ("power", 1.0), ("power", 0.6), ("gnmt", 1.0), ("gnmt", 2.0)]


def settings(**changes: Any) -> DecodingConfig:
    """Short outputs, with changes."""
    values = {"max_length_factor": 1.0, "max_length_offset": 3, **changes}
    return DecodingConfig.model_validate(values)


def test_the_toy_is_a_stepper() -> None:
    stepper: Stepper[ToyState] = TableStepper(random_table(0, 5))
    assert isinstance(stepper, TableStepper)


@given(
    seed=seeds,
    vocab_size=st.integers(5, 12),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    grain=st.sampled_from([0.0, 2.0]),
)
def test_a_beam_of_one_is_greedy_search(
    seed: int, vocab_size: int, lengths: list[int], grain: float
) -> None:
    """Also where tokens are equally probable: then the lowest id is taken."""
    table = random_table(seed, vocab_size, grain=grain)
    inputs = sources(lengths, seed)
    wide = beam_search(TableStepper(table), *inputs, settings(beam_size=1))
    greedy = greedy_search(TableStepper(table), *inputs, settings(beam_size=1))
    assert wide == greedy


def test_of_equal_continuations_the_better_beam_and_the_lower_id_come_first() -> None:
    totals = torch.tensor([[-1.0, -1.0, -2.0]])
    log_probs = torch.full((1, 3, 90), -1.0)
    log_probs[0, 2] = 0.0
    found = expand(totals, log_probs, 2)
    assert found.parents.tolist() == [[0, 0, 0, 0]]
    assert found.tokens.tolist() == [[0, 1, 2, 3]]
    log_probs[0, 0, 3:] = -torch.inf
    found = expand(totals, log_probs, 2)
    assert found.parents.tolist() == [[0, 0, 0, 1]]
    assert found.tokens.tolist() == [[0, 1, 2, 0]]


@pytest.mark.parametrize(("form", "exponent"), PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_the_best_of_all_outputs(
    seed: int, form: str, exponent: float
) -> None:
    """3 words and outputs up to length 5: 1 + 3 + 9 + 27 + 81 of them."""
    table, (source, lengths) = random_table(seed, FIRST_WORD + 3), sources([2, 2], seed)
    config = settings(beam_size=128, n_best=3, length_penalty=exponent, length_penalty_form=form)
    results = beam_search(TableStepper(table), source, lengths, config)
    narrow = [
        beam_search(TableStepper(table), source, lengths, config.model_copy(update=changes))
        for changes in ({"beam_size": size, "n_best": 1} for size in (1, 2, 5))
    ]
    for row, found in enumerate(results):
        every = all_hypotheses(table, tuple(source[row].tolist()), FIRST_WORD + 3, config)
        assert len(every) == 121
        assert [hypothesis.ids for hypothesis in found] == [h.ids for h in every[:3]]
        scores = [hypothesis.score for hypothesis in found]
        assert scores == pytest.approx([h.score for h in every[:3]], abs=1e-5)
        assert all(other[row][0].score <= scores[0] + 1e-6 for other in narrow)


@given(
    seed=seeds,
    beam_size=st.integers(1, 6),
    low=st.sampled_from([0.0, 0.5, 1.0]),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_outputs_obey_the_rules(seed: int, beam_size: int, low: float, lengths: list[int]) -> None:
    config = settings(beam_size=beam_size, n_best=beam_size, min_length_factor=low)
    stepper = TableStepper(random_table(seed, 11))
    results = beam_search(stepper, *sources(lengths, seed), config)
    for length, found in zip(lengths, results, strict=True):
        words = length - 1
        assert 1 <= len(found) <= beam_size
        assert len({hypothesis.ids for hypothesis in found}) == len(found)
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in found:
            assert int(low * words) <= len(hypothesis.ids) <= words + 3
            assert all(index >= FIRST_WORD for index in hypothesis.ids)
            assert hypothesis.log_prob <= 0


@given(
    seed=seeds,
    beam_size=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    grain=st.sampled_from([0.0, 2.0]),
)
def test_results_do_not_depend_on_who_else_is_in_the_batch(
    seed: int, beam_size: int, lengths: list[int], grain: float
) -> None:
    table = random_table(seed, 9, grain=grain)
    config = settings(beam_size=beam_size, n_best=beam_size)
    source, counts = sources(lengths, seed)
    together = beam_search(TableStepper(table), source, counts, config)
    for row, length in enumerate(lengths):
        alone = source[row : row + 1, :length]
        (found,) = beam_search(TableStepper(table), alone, counts[row : row + 1], config)
        assert ids_of([found]) == ids_of([together[row]])


@pytest.mark.parametrize(("form", "exponent"), PENALTIES)
@pytest.mark.parametrize("n_best", [1, 3])
def test_stopping_early_changes_nothing(
    form: str, exponent: float, n_best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer steps, the same n best as with a search that waits for K finished hypotheses."""
    config = settings(
        beam_size=5, n_best=n_best, length_penalty=exponent, length_penalty_form=form,
        max_length_offset=12,
    )  # fmt: skip
    steps = {}

    def search(name: str) -> list[list[list[Hypothesis]]]:
        results = []
        steps[name] = 0
        for seed in range(25):
            stepper = TableStepper(random_table(seed, 8, sharpness=3.0))
            results.append(beam_search(stepper, *sources([5, 2, 7], seed), config))
            steps[name] += sum(stepper.rows)
        return results

    early = search("early")

    def never(_pools: Any, alive: Tensor, _best_live: Tensor) -> Tensor:
        return torch.zeros_like(alive, dtype=torch.bool)

    monkeypatch.setattr(FinishedHypotheses, "_hopeless", never)
    assert search("late") == early
    assert steps["early"] < steps["late"] or (n_best > 1 and steps["early"] == steps["late"])


def test_finished_sentences_leave_the_batch() -> None:
    stepper = TableStepper(random_table(4, 9))
    source, lengths = sources([2, 5, 12, 20])
    beam_search(stepper, source, lengths, settings(beam_size=3))
    assert stepper.rows[0] == 4
    assert stepper.rows == sorted(stepper.rows, reverse=True)
    assert stepper.rows[-1] < 4


def test_a_vocabulary_smaller_than_the_beam_is_searched_whole() -> None:
    """One word: the only outputs are none to four of it."""
    config = settings(beam_size=8, n_best=8)
    stepper = TableStepper(random_table(2, FIRST_WORD + 1))
    (found,) = beam_search(stepper, *sources([2]), config)
    assert {hypothesis.ids for hypothesis in found} == {(4,) * count for count in range(5)}


def test_a_search_whose_beams_all_die_keeps_what_it_found() -> None:
    """After one word, and after none, only EOS is possible."""

    def table(key: tuple[int, ...]) -> Tensor:
        scores = torch.full((8,), -torch.inf)
        scores[EOS_ID] = -1.0
        if key[-1] == 2:  # right after BOS
            scores[5], scores[6] = -0.5, -2.0
        return scores

    config = settings(beam_size=4, n_best=4, length_penalty=0.0)
    (found,) = beam_search(TableStepper(table), *sources([6]), config)
    assert [(h.ids, h.log_prob) for h in found] == [((), -1.0), ((5,), -1.5), ((6,), -3.0)]


@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_no_possible_output_gives_no_hypothesis(value: float) -> None:
    def table(_: tuple[int, ...]) -> Tensor:
        return torch.full((8,), value)

    inputs = sources([3, 1])
    assert beam_search(TableStepper(table), *inputs, settings(beam_size=3)) == [[], []]
    assert greedy_search(TableStepper(table), *inputs, settings(beam_size=1)) == [[], []]
