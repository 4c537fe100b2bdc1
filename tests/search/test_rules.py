"""Which tokens may come next."""

from __future__ import annotations

import torch

from nmt.search.rules import forbid
from nmt.text.special import BOS_ID, EOS_ID, PAD_ID, UNK_ID

INFINITY = float("inf")


def allowed(length: int, shortest: list[int], longest: list[int]) -> list[list[int]]:
    """Tokens that may come for each sentence, alike for both beams."""
    log_probs = torch.full((len(shortest), 2, 7), -1.5)
    forbid(log_probs, length, torch.tensor(shortest), torch.tensor(longest))
    assert set(log_probs.flatten().tolist()) <= {-1.5, -INFINITY}
    assert torch.equal(log_probs[:, 0], log_probs[:, 1])
    return [row.isfinite().nonzero().flatten().tolist() for row in log_probs[:, 0]]


def test_padding_unknown_and_bos_never_come() -> None:
    (tokens,) = allowed(3, [1], [9])
    assert tokens == [EOS_ID, 4, 5, 6]
    assert not {PAD_ID, UNK_ID, BOS_ID} & set(tokens)


def test_eos_waits_for_the_shortest_length() -> None:
    assert allowed(3, [4, 3], [9, 9]) == [[4, 5, 6], [EOS_ID, 4, 5, 6]]


def test_only_eos_comes_at_the_longest_length() -> None:
    assert allowed(3, [1, 1, 3], [3, 4, 3]) == [[EOS_ID], [EOS_ID, 4, 5, 6], [EOS_ID]]
