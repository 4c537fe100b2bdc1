"""The coverage penalty: its number by hand, and every kind of beam search with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.constraints import NONE, Constraints
from nmt.search.hypothesis import Hypothesis, length_penalty
from nmt.search.loop import coverage_penalty, search
from nmt.search.selector import FinishedHypotheses
from tests.search.naive import Naive
from tests.search.test_searches import KINDS, VOCAB_SIZE, options_of, required, seeds
from tests.search.toys import TableStepper, random_table, sources

weights = st.sampled_from([0.2, 1.0, 5.0])
BEAMS = [kind for kind in KINDS if "beam_size" in kind]


def search_toy(
    seed: int, lengths: list[int], config: DecodingConfig, own: list[Constraints] | None = None
) -> tuple[list[list[Hypothesis]], TableStepper]:
    stepper = TableStepper(random_table(seed, VOCAB_SIZE, sharpness=3.0))
    return search(stepper, *sources(lengths, seed), config, own), stepper


def test_the_number_by_hand() -> None:
    """Two words and EOS: log 0.5 + log 1; then log 0.2 + log 0.4, where a third place is padding.

    EOS counts for nothing, nor does what is read of a word beyond 1.
    """
    coverage = torch.tensor([[[0.5, 1.5, 0.0]], [[0.2, 1.8, 0.0]]])
    found = coverage_penalty(coverage, torch.tensor([3, 2]), 0.5)

    assert found.tolist() == [
        [pytest.approx(0.5 * math.log(0.5))],
        [pytest.approx(0.5 * math.log(0.2))],
    ]


def test_a_word_that_was_not_read_at_all_leaves_the_score_a_number() -> None:
    found = coverage_penalty(torch.zeros(1, 1, 4), torch.tensor([4]), 1.0)

    assert -1000 < float(found) < -100


@settings(max_examples=30)
@given(seed=seeds, weight=weights, exponent=st.sampled_from([0.0, 1.0]), own=required)
def test_a_beam_wide_enough_finds_the_best_outputs(
    seed: int, weight: float, exponent: float, own: Constraints
) -> None:
    config = options_of(beam_size=256, n_best=3, coverage_penalty=weight, length_penalty=exponent)
    table, (source, lengths) = random_table(seed, VOCAB_SIZE, sharpness=3.0), sources([3, 2], seed)
    together, _ = search_toy(seed, [3, 2], config, [own, NONE])
    for row, wishes in enumerate((own, NONE)):
        ids = tuple(source[row, : int(lengths[row])].tolist())
        naive = Naive(table, ids, VOCAB_SIZE, config, wishes)
        if naive.limits[1] <= 7:
            expected = naive.every_output()[:3]
            assert [h.ids for h in together[row]] == [h.ids for h in expected]
            assert [h.score for h in together[row]] == pytest.approx([h.score for h in expected])


@given(seed=seeds, weight=weights, kind=st.sampled_from(BEAMS), phrase=st.booleans())
def test_every_score_is_the_definition_whatever_the_beam_and_the_batch(
    seed: int, weight: float, kind: dict[str, Any], phrase: bool
) -> None:
    if phrase:
        kind = {key: value for key, value in kind.items() if key != "diverse_beam_groups"}
    config = options_of(coverage_penalty=weight, **kind)
    lengths, own = [3, 5, 1, 4], [NONE, Constraints(required=((5,),)), NONE, NONE]
    together, _ = search_toy(seed, lengths, config, own if phrase else None)
    source, _ = sources(lengths, seed)
    table = random_table(seed, VOCAB_SIZE, sharpness=3.0)
    for row, length in enumerate(lengths):
        ids = tuple(source[row, :length].tolist())
        naive = Naive(table, ids, VOCAB_SIZE, config)
        scores = [hypothesis.score for hypothesis in together[row]]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx([naive.score(h.ids, h.log_prob) for h in together[row]])


@pytest.mark.parametrize("kind", BEAMS)
def test_it_chooses_among_finished_hypotheses(kind: dict[str, Any]) -> None:
    """The best one is another, and reads more of the source."""

    def best(weight: float) -> list[Hypothesis]:
        config = options_of(coverage_penalty=weight, **{**kind, "n_best": 1})
        return [search_toy(seed, [5], config)[0][0][0] for seed in range(40)]

    plain, covering = best(0.0), best(5.0)
    if kind["beam_size"] == 1:
        assert [h.ids for h in plain] == [h.ids for h in covering]
    else:
        assert sum(len(h.ids) for h in plain) < sum(len(h.ids) for h in covering)


@pytest.mark.parametrize("kind", KINDS)
def test_without_it_nothing_is_looked_at_and_no_score_has_more(kind: dict[str, Any]) -> None:
    config = options_of(**kind)
    results, stepper = search_toy(3, [4, 2], config)
    penalty = length_penalty(config)

    assert stepper.num_looks == 0
    for hypothesis in (h for found in results for h in found):
        assert hypothesis.score == hypothesis.log_prob / penalty(len(hypothesis.ids) + 1)


@pytest.mark.parametrize("weight", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("kind", BEAMS[1:])
def test_stopping_early_changes_nothing(
    weight: float, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = options_of(coverage_penalty=weight, max_length_offset=8, **kind)

    def results() -> tuple[list[Any], int]:
        found = [search_toy(seed, [5, 2, 7], config) for seed in range(12)]
        return [hypotheses for hypotheses, _ in found], sum(len(s.rows) for _, s in found)

    def never(_pools: Any, alive: Tensor, _best_live: Tensor) -> Tensor:
        return torch.zeros_like(alive, dtype=torch.bool)

    early, few = results()
    monkeypatch.setattr(FinishedHypotheses, "_hopeless", never)
    late, many = results()
    assert early == late
    assert few <= many


@pytest.mark.parametrize("way", ["sampling", "return_alternatives"])
def test_what_is_no_beam_search_refuses_it(way: str) -> None:
    with pytest.raises(ValidationError, match=f"coverage_penalty .0.2. is an option.*{way}"):
        options_of(coverage_penalty=0.2, **{way: True})
