"""Beam search: ties, when it stops, groups, and the coverage penalty."""

from __future__ import annotations

import math
from collections import Counter
from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from nmt.search.beam import expand
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.search.loop import coverage_penalty, search
from nmt.search.selector import FinishedHypotheses
from nmt.text import EOS_ID
from tests.search.naive import Naive
from tests.search.toys import (
    FIRST_WORD,
    KINDS,
    TableStepper,
    ids_of,
    options_of,
    random_table,
    sources,
)

Ids = tuple[int, ...]
seeds = st.integers(0, 10**6)
BEAMS = [kind for kind in KINDS if "beam_size" in kind and "coverage_penalty" not in kind]


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


@pytest.mark.parametrize(("form", "exponent"), [("power", 0.0), ("power", 1.0), ("gnmt", 2.0)])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("kind", BEAMS[1:])
def test_stopping_early_changes_no_result(
    kind: Any, weight: float, form: str, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer steps, the same n best as with a search that waits for K finished hypotheses."""
    config = options_of(
        **kind, length_penalty=exponent, length_penalty_form=form, max_length_offset=10,
        coverage_penalty=weight,
    )  # fmt: skip

    def results() -> tuple[list[list[list[Hypothesis]]], int]:
        steppers = [TableStepper(random_table(seed, 8, sharpness=3.0)) for seed in range(8)]
        inputs = [sources([5, 2, 7], seed) for seed in range(8)]
        found = [search(each, own, config) for each, own in zip(steppers, inputs, strict=True)]
        return found, sum(sum(stepper.rows) for stepper in steppers)

    def never(_finished: Any, pools: Tensor, _best: Tensor) -> Tensor:
        return torch.zeros_like(pools, dtype=torch.bool)

    early, few = results()
    monkeypatch.setattr(FinishedHypotheses, "_hopeless", never)
    late, many = results()
    assert early == late
    assert few < many or (few == many and config.n_best > 1)


def test_a_search_whose_beams_all_die_keeps_what_it_found() -> None:
    """After one word, and after none, only EOS is possible."""

    def table(key: tuple[int, ...]) -> Tensor:
        scores = torch.full((8,), -torch.inf)
        scores[EOS_ID] = -1.0
        if key[-1] == 2:  # right after BOS
            scores[5], scores[6] = -0.5, -2.0
        return scores

    config = options_of(beam_size=4, n_best=4, length_penalty=0.0)
    (found,) = search(TableStepper(table), sources([6]), config)
    assert [(h.ids, h.log_prob) for h in found] == [((), -1.0), ((5,), -1.5), ((6,), -3.0)]


def diverse_by_hand(naive: Naive) -> list[Ids]:
    """Groups one after the other, each to its end; no early stop but that of full groups."""
    config = naive.config
    size = config.beam_size // config.diverse_beam_groups
    taken: list[Counter[int]] = [Counter() for _ in range(naive.limits[1])]
    found: list[list[tuple[float, Ids]]] = []
    for _ in range(config.diverse_beam_groups):
        active: list[tuple[float, Ids]] = [(0.0, ())]
        ended: list[tuple[float, Ids]] = []
        for counts in taken:
            ways = []
            for total, ids in active:
                for token, value in enumerate(naive.next_log_probs(ids)):
                    if value > -math.inf:
                        penalty = config.diverse_beam_strength * counts[token]
                        ways.append((total + value - penalty, total + value, (*ids, token)))
            ways.sort(key=lambda way: -way[0])
            ended += [(total, ids[:-1]) for _, total, ids in ways[:size] if ids[-1] == EOS_ID]
            active = [(total, ids) for _, total, ids in ways if ids[-1] != EOS_ID][:size]
            counts.update(ids[-1] for _, ids in active)
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
def test_groups_choose_in_turn(
    seed: int, groups: int, size: int, strength: float, n_best: int
) -> None:
    vocab_size = FIRST_WORD + 4
    table = random_table(seed, vocab_size)
    source = sources([4, 2], seed)
    config = options_of(
        beam_size=groups * size, n_best=min(n_best, groups * size), diverse_beam_groups=groups,
        diverse_beam_strength=strength,
    )  # fmt: skip
    found = search(TableStepper(table), source, config)
    for row, ids in enumerate(source.rows()):
        naive = Naive(table, tuple(ids), vocab_size, config)
        assert ids_of(found)[row] == diverse_by_hand(naive)
        for hypothesis in found[row]:
            assert hypothesis.log_prob == pytest.approx(naive.log_prob(hypothesis.ids), abs=1e-4)


def test_the_coverage_penalty_by_hand() -> None:
    """Two words and EOS: log 0.5 + log 1; then log 0.2 + log 0.4, where a third place is padding.

    EOS counts for nothing, nor does what is read of a word beyond 1.
    """
    coverage = torch.tensor([[[0.5, 1.5, 0.0]], [[0.2, 1.8, 0.0]]])
    found = coverage_penalty(coverage, torch.tensor([3, 2]), 0.5)
    assert found.flatten().tolist() == pytest.approx([0.5 * math.log(0.5), 0.5 * math.log(0.2)])
    nothing_read = coverage_penalty(torch.zeros(1, 1, 4), torch.tensor([4]), 1.0)
    assert -1000 < float(nothing_read) < -100  # a number still
    for way in ("sampling", "return_alternatives"):  # which are no beam search
        with pytest.raises(ValidationError, match=f"coverage_penalty .0.2. is an option.*{way}"):
            options_of(coverage_penalty=0.2, **{way: True})


@given(
    seed=seeds,
    weight=st.sampled_from([0.2, 5.0]),
    kind=st.sampled_from(BEAMS),
    phrase=st.booleans(),
)
def test_scores_have_the_coverage_penalty(
    seed: int, weight: float, kind: Any, phrase: bool
) -> None:
    has_phrase = phrase and "diverse_beam_groups" not in kind
    own = Constraints(required=((5,),) if has_phrase else ())
    config = options_of(coverage_penalty=weight, **kind)
    source = sources([3, 5], seed)
    table = random_table(seed, 7, sharpness=3.0)
    results = search(TableStepper(table), source, config, [own] * 2)
    for found, ids in zip(results, source.rows(), strict=True):
        naive = Naive(table, tuple(ids), 7, config, own)
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx([naive.score(h.ids, h.log_prob) for h in found])
