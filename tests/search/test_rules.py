"""Which tokens may come next, and how the length counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.search.hypothesis import Constraints, length_penalty
from nmt.search.loop import search
from nmt.search.rules import Rules, delay_end, end_at_limit, end_loops, length_limits, renormalize
from nmt.text import BOS_ID, EOS_ID, UNK_ID
from nmt.text.languages import longest_loop
from tests.search.toys import TableStepper, sources


@given(
    start=st.lists(st.integers(4, 6), max_size=6),
    cycle=st.lists(st.integers(4, 6), min_size=1, max_size=8),
    length=st.integers(0, 30),
)
def test_only_loops_are_ended(start: list[int], cycle: list[int], length: int) -> None:
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


@pytest.mark.parametrize(("period", "length"), [(1, 9), (3, 11), (8, 16), (9, 22)])
def test_a_search_ends_a_loop_after_8_tokens_if_asked(period: int, length: int) -> None:
    """8 tokens after the first copy; a period of 9 goes on to the limit of 2 + 20."""

    def table(key: tuple[int, ...]) -> Tensor:
        done = len(key) - 1 - key.index(BOS_ID)
        log_probs = torch.full((14,), -9.0)
        log_probs[4 + done % period] = -0.1
        return log_probs

    options = DecodingConfig(beam_size=1, max_length_factor=1.0, max_length_offset=20)
    for is_asked, size in ((True, length), (False, 22)):
        ((found,),) = search(TableStepper(table), sources([3]), options, end_loops=is_asked)
        assert len(found.ids) == size


@pytest.mark.parametrize(
    ("form", "exponent", "length", "expected"),
    [
        ("power", 0.0, 9, 1.0),
        ("power", 0.5, 9, 3.0),
        ("power", 2.0, 3, 9.0),
        ("gnmt", 1.0, 1, 1.0),
        ("gnmt", 1.0, 7, 2.0),  # (5 + 7) / 6
        ("gnmt", 0.5, 19, 2.0),  # sqrt(24 / 6)
        ("gnmt", 0.6, 7, 1.515717),  # 2 ^ 0.6
    ],
)
def test_length_penalties_equal_the_papers(
    form: str, exponent: float, length: int, expected: float
) -> None:
    values = {"length_penalty": exponent, "length_penalty_form": form}
    penalty = length_penalty(DecodingConfig.model_validate(values))
    assert penalty(length) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "factors", "offset", "positions", "expected"),
    [
        (10, (0.0, 2.0), 20, None, (1, 41)),  # EOS alone; 10 * 2 + 20 words and EOS
        (7, (0.5, 1.5), 1, None, (4, 12)),  # 3.5 and 10.5 words are 3 and 10
        (0, (0.5, 2.0), 5, None, (1, 6)),
        (10, (3.0, 1.0), 2, None, (13, 13)),  # a lower limit above the upper one
        (10, (0.5, 1.0), 3, 20, (6, 14)),
        (10, (0.5, 1.0), 3, 9, (6, 9)),
        (10, (1.0, 1.0), 3, 9, (9, 9)),  # and above the end of the positions
    ],
)
def test_limits_count_eos_and_never_cross(
    words: int, factors: tuple[float, float], offset: int, positions: int, expected: tuple[int, int]
) -> None:
    low, high = factors
    config = DecodingConfig(min_length_factor=low, max_length_factor=high, max_length_offset=offset)
    assert tuple(map(int, length_limits(torch.tensor([words + 1]), config, positions))) == expected


def test_an_unknown_token_of_a_prefix_does_not_change_the_score() -> None:
    rules = Rules(torch.tensor([3]), DecodingConfig(), [Constraints(prefix=(5, UNK_ID))])
    for history, token, expected in (([], 5, -1.5), ([5], UNK_ID, 0.0)):
        log_probs = torch.full((1, 1, 7), -1.5)
        log_probs[..., :EOS_ID] = -torch.inf  # as a model's stepper has it
        rules(log_probs, torch.tensor([0]), torch.tensor([[history]], dtype=torch.int64))
        assert log_probs.isfinite().nonzero().tolist() == [[0, 0, token]]
        assert log_probs[0, 0, token] == expected


@pytest.mark.parametrize("chosen", [None, [True, False, True], [False, False, False]])
def test_what_is_left_is_normalised_in_the_sentences_asked_for(chosen: list[bool] | None) -> None:
    """A hypothesis without any token keeps minus infinity, which no search takes for a result."""
    log_probs = torch.full((3, 2, 6), 1 / 6).log()
    log_probs[0, 0, :2] = -torch.inf  # four of six are left
    log_probs[1, 1, 1:] = -torch.inf  # one
    log_probs[2, 0] = -torch.inf  # none
    before = log_probs.clone()
    renormalize(log_probs, None if chosen is None else torch.tensor(chosen))
    sums = before.exp().sum(-1, keepdim=True)
    expected = (before.exp() / sums.where(sums > 0, 1.0)).log()
    for row in range(3):
        is_asked = chosen is None or chosen[row]
        torch.testing.assert_close(log_probs[row], expected[row] if is_asked else before[row])


def test_ends_are_forbidden_or_forced_in_their_sentences_or_beams_only() -> None:
    before = torch.full((2, 2, 5), -1.5)
    early, last, beams = (before.clone() for _ in range(3))
    delay_end(early, torch.tensor([False, True]))
    assert early.isneginf().nonzero().tolist() == [[1, 0, EOS_ID], [1, 1, EOS_ID]]
    end_at_limit(last, torch.tensor([True, False]))
    assert torch.equal(last[1], before[1])
    assert last[0].isfinite().nonzero().tolist() == [[0, EOS_ID], [1, EOS_ID]]
    assert last[0, :, EOS_ID].tolist() == [-1.5, -1.5]
    end_at_limit(beams, torch.tensor([[False, True], [False, False]]))
    assert beams[0, 1].isfinite().nonzero().tolist() == [[EOS_ID]]
    assert torch.equal(beams[0, 0], before[0, 0])
    assert torch.equal(beams[1], before[1])
