"""Constraints, progress of required phrases, the division of the beam, and its outputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.search.beam import RequiredPhrases, bank_sizes
from nmt.search.hypothesis import Constraints, Ids, contains
from nmt.search.loop import search
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.search.toys import Table, TableStepper, options_of, random_table, sources

phrases = st.lists(st.integers(4, 6), min_size=1, max_size=5).map(tuple)


@given(own=st.lists(phrases, max_size=3), ids=st.lists(st.integers(4, 6), max_size=25))
def test_progress_says_what_the_output_contains(own: list[tuple[int, ...]], ids: list[int]) -> None:
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


@pytest.mark.parametrize("token", [PAD_ID, BOS_ID, EOS_ID])
def test_constraints_of_what_is_no_output_are_misuse(token: int) -> None:
    for wrong in ({"prefix": (5, token)}, {"required": ((token,),)}, {"forbidden": ((token,),)}):
        with pytest.raises(ValueError, match="no part of an output"):
            Constraints(**wrong)
    with pytest.raises(ValueError, match="no tokens"):
        Constraints(required=((5,), ()))


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
def test_plain_contradictions_are_named(own: Constraints, size: int, problem: str | None) -> None:
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
