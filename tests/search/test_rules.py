"""Which tokens may come next, and how the length counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.inference.guard import longest_loop
from nmt.search.hypothesis import NONE, Constraints, length_penalty, limits_of
from nmt.search.rules import (
    ForbiddenPhrases,
    Rules,
    end_loops,
    forbid_repeated_ngrams,
    length_limits,
    penalize_repetition,
)
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

INFINITY = float("inf")


@given(
    source_lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    factors=st.sampled_from([(0.0, 0.0), (0.0, 1.5), (0.5, 1.0), (1.0, 1.0), (1.0, 1.5)]),
    offset=st.integers(1, 3),
    length=st.integers(1, 15),
)
def test_rules_keep_every_sentence_within_its_limits(
    source_lengths: list[int], factors: tuple[float, float], offset: int, length: int
) -> None:
    config = DecodingConfig(
        min_length_factor=factors[0], max_length_factor=factors[1], max_length_offset=offset
    )
    assert {PAD_ID, UNK_ID, BOS_ID} == {0, 1, 2}  # they never come
    rules = Rules(torch.tensor(source_lengths), config, [NONE] * len(source_lengths))
    log_probs = torch.full((len(source_lengths), 1, 7), -1.5)
    history = torch.full((len(source_lengths), 1, length - 1), 4)
    rules(log_probs, torch.arange(len(source_lengths)), history)
    for own, source_length in zip(log_probs[:, 0], source_lengths, strict=True):
        limits = limits_of(source_length - 1, config)
        expected = {EOS_ID, 4, 5, 6} if length < limits.longest else {EOS_ID}
        if length < limits.shortest:
            expected -= {EOS_ID}
        assert set(own.isfinite().nonzero().flatten().tolist()) == expected


histories = st.lists(
    st.lists(st.integers(4, 6), min_size=7, max_size=7), min_size=4, max_size=4
).map(lambda rows: torch.tensor(rows).view(2, 2, 7))
phrases = st.lists(st.integers(4, 6), min_size=1, max_size=4).map(tuple)


def forbidden_tokens(log_probs: Tensor) -> list[list[set[int]]]:
    """Of each hypothesis."""
    assert set(log_probs.flatten().tolist()) <= {-1.5, -INFINITY}
    return [[set(row.isneginf().nonzero().flatten().tolist()) for row in own] for own in log_probs]


@given(history=histories, size=st.integers(1, 9), length=st.integers(0, 7))
def test_no_ngram_comes_twice(history: Tensor, size: int, length: int) -> None:
    history = history[..., :length]
    log_probs = torch.full((2, 2, 8), -1.5)
    forbid_repeated_ngrams(log_probs, history, size)
    for ids, tokens in zip(history.tolist(), forbidden_tokens(log_probs), strict=True):
        for own, found in zip(ids, tokens, strict=True):
            ngrams = {tuple(own[i : i + size]) for i in range(length - size + 1)}
            assert found == {i for i in range(8) if tuple([*own, i][-size:]) in ngrams}


@given(history=histories, penalty=st.sampled_from([0.5, 2.0]))
def test_tokens_that_came_are_penalized_once(history: Tensor, penalty: float) -> None:
    log_probs = torch.full((2, 2, 8), -1.5)
    penalize_repetition(log_probs, history, penalty)
    for ids, own in zip(history.flatten(0, 1).tolist(), log_probs.flatten(0, 1), strict=True):
        assert own.tolist() == [-1.5 * (penalty if i in ids else 1) for i in range(8)]


@given(
    history=histories,
    length=st.integers(0, 7),
    banned=st.lists(st.lists(phrases, max_size=3), min_size=3, max_size=3),
)
def test_forbidden_phrases_are_not_completed(
    history: Tensor, length: int, banned: list[list[tuple[int, ...]]]
) -> None:
    assume(any(banned))
    history, alive = history[..., :length], torch.tensor([0, 2])
    log_probs = torch.full((2, 2, 8), -1.5)
    log_probs[..., PAD_ID] = -INFINITY  # as always
    ForbiddenPhrases(banned)(log_probs, alive, history)
    for sentence, ids, tokens in zip(
        alive.tolist(), history.tolist(), forbidden_tokens(log_probs), strict=True
    ):
        for own, found in zip(ids, tokens, strict=True):
            assert found - {PAD_ID} == {
                phrase[-1]
                for phrase in banned[sentence]
                if len(phrase) <= length + 1
                and own[length + 1 - len(phrase) :] == list(phrase[:-1])
            }


@given(
    start=st.lists(st.integers(4, 6), max_size=6),
    cycle=st.lists(st.integers(4, 6), min_size=1, max_size=8),
    length=st.integers(0, 30),
)
def test_only_what_goes_round_in_circles_is_ended(
    start: list[int], cycle: list[int], length: int
) -> None:
    """The guard's own count agrees: 8 tokens or more that repeat what stands before them."""
    tokens = (start + cycle * length)[:length]
    before = torch.full((1, 2, 8), -1.0)
    log_probs = before.clone()
    end_loops(log_probs, torch.tensor([[tokens, list(range(length))]], dtype=torch.int64))

    is_ended = log_probs[0, 0].isneginf().sum() == 7
    assert torch.equal(log_probs, before) or is_ended
    assert torch.equal(log_probs[..., EOS_ID], before[..., EOS_ID])
    assert torch.equal(log_probs[0, 1], before[0, 1])  # no token comes twice
    if is_ended:
        assert longest_loop(tokens) >= 8
    elif length >= len(start) + 8 + len(cycle):
        raise AssertionError("8 tokens repeat at its end")


@pytest.mark.parametrize(
    ("form", "exponent", "length", "expected"),
    [
        ("power", 0.0, 9, 1.0),
        ("power", 1.0, 9, 9.0),
        ("power", 0.5, 9, 3.0),
        ("power", 2.0, 3, 9.0),
        ("gnmt", 0.0, 9, 1.0),
        ("gnmt", 1.0, 1, 1.0),
        ("gnmt", 1.0, 7, 2.0),  # (5 + 7) / 6
        ("gnmt", 0.5, 19, 2.0),  # sqrt(24 / 6)
        ("gnmt", 0.6, 7, 1.515717),  # 2 ^ 0.6
    ],
)
def test_length_penalties_are_what_the_papers_say(
    form: str, exponent: float, length: int, expected: float
) -> None:
    values = {"length_penalty": exponent, "length_penalty_form": form}
    penalty = length_penalty(DecodingConfig.model_validate(values))
    assert penalty(length) == pytest.approx(expected, abs=1e-6)
    numbers = [penalty(other) for other in range(1, 200)]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("words", "low", "high", "offset", "positions", "expected"),
    [
        (10, 0.0, 2.0, 20, None, (1, 41)),  # EOS alone; 10 * 2 + 20 words and EOS
        (10, 0.5, 1.0, 3, None, (6, 14)),
        (7, 0.5, 1.5, 1, None, (4, 12)),  # 3.5 and 10.5 words are 3 and 10
        (0, 0.5, 2.0, 5, None, (1, 6)),
        (10, 3.0, 1.0, 2, None, (13, 13)),  # a lower limit above the upper one
        (10, 0.5, 1.0, 3, 20, (6, 14)),
        (10, 0.5, 1.0, 3, 9, (6, 9)),
        (10, 1.0, 1.0, 3, 9, (9, 9)),  # and above the end of the positions
    ],
)
def test_limits_count_eos_and_never_cross(
    words: int,
    low: float,
    high: float,
    offset: int,
    positions: int | None,
    expected: tuple[int, int],
) -> None:
    config = DecodingConfig(min_length_factor=low, max_length_factor=high, max_length_offset=offset)
    shortest, longest = length_limits(torch.tensor([words + 1]), config, positions)
    assert (int(shortest), int(longest)) == expected


def test_rules_that_are_off_cost_nothing() -> None:
    nothing = Rules(torch.tensor([3]), DecodingConfig(), [NONE])
    assert (nothing._forbidden, nothing._prefixes) == (None, None)


def test_an_unknown_token_of_a_prefix_is_given_and_adds_nothing_to_the_score() -> None:
    rules = Rules(torch.tensor([3]), DecodingConfig(), [Constraints(prefix=(5, UNK_ID))])
    for history, token, expected in (([], 5, -1.5), ([5], UNK_ID, 0.0)):
        log_probs = torch.full((1, 1, 7), -1.5)
        log_probs[..., :EOS_ID] = -INFINITY  # as a model's stepper has it
        rules(log_probs, torch.tensor([0]), torch.tensor([[history]], dtype=torch.int64))
        assert log_probs.isfinite().nonzero().tolist() == [[0, 0, token]]
        assert log_probs[0, 0, token] == expected
