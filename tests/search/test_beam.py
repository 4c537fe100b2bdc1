"""Beam search: ties, when it stops, groups, the coverage penalty, and required phrases."""

from __future__ import annotations

import math
from collections import Counter
from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from nmt.search.beam import RequiredPhrases, bank_sizes, expand
from nmt.search.hypothesis import Constraints, Hypothesis, Ids, contains
from nmt.search.loop import coverage_penalty, search
from nmt.search.selector import FinishedHypotheses, SearchInputs, first_largest, largest
from nmt.text import BOS_ID, EOS_ID, UNK_ID
from tests.search.naive import Naive
from tests.search.toys import (
    FIRST_WORD,
    KINDS,
    Table,
    TableStepper,
    ids_of,
    options_of,
    random_table,
    sources,
)

seeds = st.integers(0, 10**6)
BEAMS = [kind for kind in KINDS if "beam_size" in kind and "coverage_penalty" not in kind]


def test_ties_are_broken_by_the_better_beam_then_the_lower_id() -> None:
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


def test_a_search_without_unfinished_beams_keeps_its_results() -> None:
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


def beams_by_hand(naive: Naive) -> list[Ids]:
    """Groups one after the other, each to its end; no early stop but that of full groups."""
    config = naive.config
    size = config.beam_size // config.diverse_beam_groups
    most = 1 if size == 1 else math.ceil(config.patience * size)
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
            if len(ended) >= most:
                break
        ended.sort(key=lambda own: -naive.score(own[1], own[0]))
        found.append(ended)
    merged = {own[1]: own for group in zip_longest(*found) for own in group if own}
    best = list(merged.values())[: config.n_best]
    return [ids for _, ids in sorted(best, key=lambda own: -naive.score(own[1], own[0]))]


@given(
    seed=seeds,
    groups=st.integers(2, 4),
    size=st.integers(1, 3),
    strength=st.sampled_from([0.0, 0.5, 3.0]),
    n_best=st.integers(1, 4),
)
def test_groups_take_turns(seed: int, groups: int, size: int, strength: float, n_best: int) -> None:
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
        assert ids_of(found)[row] == beams_by_hand(naive)
        for hypothesis in found[row]:
            assert hypothesis.log_prob == pytest.approx(naive.log_prob(hypothesis.ids), abs=1e-4)


@pytest.mark.parametrize("patience", [0.3, 1.0, 1.5])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_search_stops_by_its_patience_and_by_its_own_longest_output(
    groups: int, patience: float
) -> None:
    """Of a long source among short ones: a long output may win where the penalty is large."""
    for seed in range(8):
        table = random_table(seed, FIRST_WORD + 3, sharpness=1.0)
        source = sources([2, 8, 2], seed)
        config = options_of(
            beam_size=4, n_best=1, diverse_beam_groups=groups, patience=patience,
            length_penalty=2.0,
        )  # fmt: skip
        found = search(TableStepper(table), source, config)
        for row, ids in enumerate(source.rows()):
            naive = Naive(table, tuple(ids), FIRST_WORD + 3, config)
            assert ids_of(found)[row] == beams_by_hand(naive)


def test_every_pool_of_a_sentence_goes_on_as_long_as_its_own_limit_allows() -> None:
    """All have an output of score -1. An unfinished one of -10 may reach -10 / 3^2 = -1.1 in the
    outputs of at most 3 tokens, which is too little, and -10 / 9^2 = -0.1 in those of 9."""
    options = options_of(beam_size=6, n_best=1, diverse_beam_groups=3, length_penalty=2.0)
    inputs = SearchInputs(sources([2, 2]), options, [Constraints()] * 2, torch.tensor([3, 9]), None)
    finished = FinishedHypotheses(inputs, beam_size=2, n_best=1, pools_per_sentence=3)
    pools = torch.arange(6)
    finished.add(pools, torch.empty(6, 0, dtype=torch.int64), torch.full((6,), -1.0))
    goes_on = finished.active(pools, torch.full((6,), -10.0))
    assert goes_on.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("num_finished", "length_penalty", "log_prob", "goes_on"),
    [
        (2, 1.0, -7.0, False),  # at best -7 / (3 + 4), which is only equal
        (2, 1.0, -6.9, True),
        (1, 1.0, -7.0, True),  # fewer than K: up to 50 tokens, -7 / 50
        (2, 2.0, -60.0, True),  # below -1 with 7 tokens, but -60 / 50^2 with 50
        (2, 1.0, -50.0, False),
    ],
)
def test_after_k_hypotheses_a_search_goes_on_if_a_better_one_may_end_soon(
    num_finished: int, length_penalty: float, log_prob: float, goes_on: bool
) -> None:
    """Finished: scores -1 and -2. Unfinished: 3 tokens."""
    options = options_of(beam_size=2, n_best=1, patience=2.0, length_penalty=length_penalty)
    inputs = SearchInputs(sources([9]), options, [Constraints()], torch.tensor([50]), None)
    finished = FinishedHypotheses(inputs, beam_size=2, n_best=1)
    for score in (-1.0, -2.0)[:num_finished]:
        finished.add(torch.tensor([0]), torch.empty(1, 0).long(), torch.tensor([score]))
    pool, best = torch.tensor([0]), torch.tensor([log_prob])
    assert finished.active(pool, best, 3).tolist() == [goes_on]


@pytest.mark.parametrize(
    ("length", "patience", "expected"), [(4, 1.0, 2), (4, 2.0, 4), (12, 2.0, 5), (12, 9.0, 12)]
)
def test_patience_finds_the_sentence_that_was_cut_off(
    length: int, patience: float, expected: int
) -> None:
    """A sentence of equal words of probability 0.9. Its end has 0.06 too early, 0.97 in time.

    With three beams, one output ends at each step: its score log(0.9^n x 0.06) / (n + 1) rises.
    """

    def table(key: tuple[int, ...]) -> Tensor:
        num_words = len(key) - 1 - key.index(BOS_ID)
        probs = torch.full((8,), 0.01)
        probs[4], probs[EOS_ID] = 0.9, 0.06
        if num_words == length:
            probs[4], probs[EOS_ID] = 0.001, 0.97
        return probs.log()

    config = options_of(beam_size=3, patience=patience, max_length_offset=20)
    ((best,),) = search(TableStepper(table), sources([9]), config)
    assert best.ids == (4,) * expected
    end = 0.97 if expected == length else 0.06
    score = (expected * math.log(0.9) + math.log(end)) / (expected + 1)
    assert best.score == pytest.approx(score, rel=1e-5)


@given(seed=seeds, size=st.integers(2, 4), sharpness=st.sampled_from([1.0, 3.0]))
def test_an_output_that_stays_in_the_beam_is_not_better_than_the_result(
    seed: int, size: int, sharpness: float
) -> None:
    """That of greedy search, with a patience without end."""
    table = random_table(seed, FIRST_WORD + 3, sharpness=sharpness)
    source = sources([5], seed)
    config = options_of(beam_size=size, patience=100.0)
    naive = Naive(table, tuple(source.rows()[0]), FIRST_WORD + 3, config)
    greedy = naive.greedy()
    assert greedy is not None
    active: list[tuple[float, Ids]] = [(0.0, ())]
    for end in range(1, len(greedy) + 2):
        ways = []
        for total, ids in active:
            for token, value in enumerate(naive.next_log_probs(ids)):
                ways.append((total + value, (*ids, token)))
        ways.sort(key=lambda way: -way[0])
        assume((*greedy, EOS_ID)[:end] in [ids for _, ids in ways[:size]])
        active = [way for way in ways if way[1][-1] != EOS_ID][:size]
    ((best,),) = search(TableStepper(table), source, config)
    assert best.score >= naive.score(greedy, naive.log_prob(greedy)) - 1e-6


def test_of_equal_scores_the_one_that_was_found_first_is_better() -> None:
    """Of one step that of the better beam; of two steps the earlier one."""
    options = options_of(beam_size=4, n_best=3, length_penalty=0.0)
    length = torch.tensor([9])
    inputs = SearchInputs(sources([5]), options, [Constraints()], length, None)
    finished = FinishedHypotheses(inputs, beam_size=4, n_best=3)
    for histories in ([[7], [5]], [[6, 4]], [[4, 4, 4]]):
        pools = torch.zeros(len(histories), dtype=torch.int64)
        totals = torch.full((len(histories),), -1.5)
        finished.add(pools, torch.tensor(histories), totals)
    assert [found.ids for found in finished.by_sentence()[0][0]] == [(7,), (5,), (6, 4), (4, 4, 4)]


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
        with pytest.raises(ValidationError, match=f"coverage_penalty .* needs beam search.*{way}"):
            options_of(coverage_penalty=0.2, **{way: True})


@given(
    seed=seeds,
    weight=st.sampled_from([0.2, 5.0]),
    kind=st.sampled_from(BEAMS),
    phrase=st.booleans(),
)
def test_scores_have_a_coverage_penalty(seed: int, weight: float, kind: Any, phrase: bool) -> None:
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
        expected = [naive.score(h.ids, h.log_prob) for h in found]
        # The coverage, times 5 at most, is summed in float32.
        assert scores == pytest.approx(expected, rel=1e-6, abs=2e-6)


def by_sorting(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    ordered = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered.values[..., :count], ordered.indices[..., :count]


@given(
    seed=st.integers(0, 10**6),
    size=st.one_of(st.integers(1, 40), st.integers(500, 1500), st.sampled_from([64, 640, 1280])),
    rows=st.integers(1, 60),
    count=st.integers(1, 5),
    kinds=st.sampled_from([2, 30, 10**6]),
)
def test_ties_are_ranked_by_index(seed: int, size: int, rows: int, count: int, kinds: int) -> None:
    """Short rows and rows of many blocks, whole or not; all values equal, some, or none."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, kinds, (rows, 2, size), generator=generator).float()
    expected = by_sorting(values, count)
    assert all(map(torch.equal, largest(values, count), expected))
    best = [part[..., 0] for part in by_sorting(values[:, :1], 1)]
    assert all(map(torch.equal, first_largest(values[:, :1]), best))


@pytest.mark.parametrize("size", [6, 700])
def test_minus_infinity_is_ranked_last_and_nan_first(size: int) -> None:
    values = torch.full((1, size), -torch.inf)
    values[0, size - 1], values[0, size - 3] = -2.0, -1.0
    best, index = largest(values, 3)
    assert best.tolist() == [[-1.0, -2.0, -torch.inf]]
    assert index[0, :2].tolist() == [size - 3, size - 1]
    values = torch.zeros(60, 1, 640)
    values[..., 300] = torch.nan  # so that a search sees it
    for rows in (values, values[:1]):
        best, index = first_largest(rows)
        assert bool(best.isnan().all())
        assert set(index.flatten().tolist()) == {300}


def test_rows_of_few_distinct_values_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting them, as 16 bits have, made a search in bfloat16 slower than one in float32."""
    values = torch.randn(20, 4096).bfloat16().float()
    expected, sort = by_sorting(values, 11), Tensor.sort

    def watched(own: Tensor, *arguments: Any, **options: Any) -> Any:
        assert own.shape[-1] <= 12
        return sort(own, *arguments, **options)

    monkeypatch.setattr(Tensor, "sort", watched)
    monkeypatch.setattr(torch, "sort", None)
    assert all(map(torch.equal, largest(values, 11), expected))


phrases = st.lists(st.integers(4, 6), min_size=1, max_size=5).map(tuple)


@given(own=st.lists(phrases, max_size=3), ids=st.lists(st.integers(4, 6), max_size=25))
def test_progress_counts_the_tokens_that_the_output_contains(
    own: list[tuple[int, ...]], ids: list[int]
) -> None:
    required = RequiredPhrases(own)
    progress = required.start
    assert required.num_met(progress) == 0
    for end in range(1, len(ids) + 1):
        before, progress = progress, required.advance(progress, ids[end - 1])
        output = tuple(ids[:end])
        met = required.num_met(progress)
        assert 0 <= met <= required.num_tokens
        assert (met == required.num_tokens) == all(contains(output, phrase) for phrase in own)
        for phrase, matched in zip(required.phrases, progress, strict=True):
            if not contains(output, phrase):
                fits = (n for n in range(len(phrase)) if output[end - n :] == phrase[:n])
                assert matched == max(fits)
        if required.num_met(before) < required.num_tokens:
            gains = [
                required.num_met(required.advance(before, token)) - required.num_met(before)
                for token in required.wanted(before)
            ]
            assert max(gains) >= 1


@pytest.mark.parametrize(
    ("counts", "beam_size", "expected"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 10, 10], 11, [3, 3, 5]),  # the remainder goes to the last
        ([10, 10, 0], 11, [3, 8, 0]),  # and on to the highest that can use it
        ([10, 1, 0], 5, [4, 1, 0]),
        ([10, 2, 0, 0, 0, 0], 3, [1, 2, 0, 0, 0, 0]),  # more banks than beams
        ([2, 1, 0], 9, [2, 1, 0]),
    ],
)
def test_banks_by_hand(counts: list[int], beam_size: int, expected: list[int]) -> None:
    assert bank_sizes(counts, beam_size) == expected


@pytest.mark.parametrize(
    ("own", "size", "problem"),
    [
        (Constraints(required=((5, UNK_ID),)), 0, "cannot write"),
        (Constraints(required=((4,), (5, 6)), forbidden=((6,),)), 0, "contains a forbidden"),
        (Constraints(required=((5, 6, 5, 6),)), 2, "repeats 2 tokens"),
        (Constraints(required=((5, 6, 5, 6),)), 3, None),
        (Constraints(required=((5, 6, 5, 6),)), 0, None),
        (Constraints(prefix=(5, UNK_ID), forbidden=((5,),)), 1, None),
    ],
)
def test_clear_contradictions_are_found(own: Constraints, size: int, problem: str | None) -> None:
    found = own.contradiction(size)
    assert found is problem is None or (found and problem and problem in found)


@given(
    seed=st.integers(0, 10**6),
    beam_size=st.integers(1, 5),
    own=st.lists(phrases.filter(lambda phrase: len(phrase) < 3), max_size=2).map(tuple),
    forbidden=st.lists(phrases.filter(lambda phrase: len(phrase) > 1), max_size=1).map(tuple),
)
def test_every_output_contains_its_phrases(
    seed: int, beam_size: int, own: tuple[Ids, ...], forbidden: tuple[Ids, ...]
) -> None:
    """There is always one, if nothing is forbidden."""
    config = options_of(beam_size=beam_size, n_best=beam_size)
    constraints = Constraints(prefix=(5,), required=own, forbidden=forbidden)
    (found,) = search(TableStepper(random_table(seed, 7)), sources([3]), config, [constraints])
    assert found or forbidden
    for hypothesis in found:
        assert hypothesis.ids[0] == 5
        assert all(contains(hypothesis.ids, phrase) for phrase in own)
        assert not any(contains(hypothesis.ids, phrase) for phrase in forbidden)


DOT, WORD = 6, 7


def sentence_table(inside: float) -> Table:
    """Of "4 5 ." with a likely end, after which a fifth of what is left is another word.

    In the sentence, after 5, that word has the probability ``inside``.
    """

    def log_probs(key: tuple[int, ...]) -> Tensor:
        prefix = key[key.index(BOS_ID) + 1 :]
        likely = {(): 4, (4,): 5}.get(prefix, EOS_ID if DOT in prefix else DOT)
        probs = torch.full((8,), 1e-9)
        probs[WORD] = 0.02 if DOT in prefix else inside if prefix == (4, 5) else 1e-9
        probs[likely] = 0.9
        return probs.log()

    return log_probs


@pytest.mark.parametrize(("inside", "ids"), [(1e-3, (4, 5, WORD, DOT)), (1e-8, (4, 5, DOT, WORD))])
@pytest.mark.parametrize("beam_size", [2, 5])
def test_a_required_phrase_stands_in_the_sentence_unless_that_is_far_less_likely(
    inside: float, ids: tuple[int, ...], beam_size: int
) -> None:
    """By hand: 0.9^4 x inside in it, 0.9^4 x 0.02 behind it, less by exp(-10) = 4.5e-5."""
    config = options_of(beam_size=beam_size, n_best=1, length_penalty=1.0)
    constraints = Constraints(required=((WORD,),))
    ((best,),) = search(TableStepper(sentence_table(inside)), sources([9]), config, [constraints])
    is_late = ids[-1] == WORD
    log_prob = 4 * math.log(0.9) + math.log(0.02 if is_late else inside)
    assert best.ids == ids
    assert best.log_prob == pytest.approx(log_prob, rel=1e-5)
    assert best.score == pytest.approx((log_prob - 10 * is_late) / 5, rel=1e-5)


def test_phrases_inside_others_are_met_with_them() -> None:
    """At the start, in the middle and at the end of one; of equal ones, one stays."""
    phrases = RequiredPhrases([(5, 6), (5, 6, 7, 9), (6, 7), (7, 9), (6, 7, 9), (8,), (8,), (9, 7)])
    assert phrases.phrases == ((5, 6, 7, 9), (8,), (9, 7))
    assert phrases.num_tokens == 7
