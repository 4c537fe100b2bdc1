"""Greedy search that runs ahead: tokens are chosen where the probabilities are.

`nmt.search.independent.GreedySelector` finds the same; it waits for the device in each step. Here
the host looks every few steps at what has ended.

Shapes: B sentences still active, V vocabulary, t tokens so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis, LengthPenalty
from nmt.search.rules import renormalize
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN

if TYPE_CHECKING:
    from nmt.search.loop import Stepper

S = TypeVar("S")
_STEPS_BETWEEN_LOOKS = 4


def greedy_ahead(
    stepper: Stepper[S], source: Packed, limits: Tensor, penalty: LengthPenalty
) -> list[list[Hypothesis]]:
    """Append the most probable token until EOS, or until EOS alone may come.

    Args:
        stepper: Gives probabilities.
        source: Source ids, each sentence ending in EOS.
        limits: Shortest and longest output of each sentence with EOS. (2, B), int64, on the CPU.
        penalty: Divides the log probability of an output.

    Returns:
        One hypothesis of each sentence; none where no token was possible.
    """
    device, count = source.ids.device, limits.shape[1]
    results: list[list[Hypothesis]] = [[] for _ in range(count)]
    sentences, state, length, new = torch.arange(count), stepper.start(source), 0, list[Tensor]()
    tokens = torch.full((count, 1), BOS_ID, device=device)
    history, own_limits = tokens[:, :0], limits.to(device)
    totals = torch.zeros(count, device=device)
    is_done = torch.zeros_like(totals, dtype=torch.bool)
    while len(sentences):
        log_probs, state = stepper.step(state, tokens)
        length += 1
        shortest, longest = limits.tolist()
        early = own_limits[0] > length if length < max(shortest) else None
        last = own_limits[1] <= length if length >= min(longest) else None
        tokens, best = _choose(log_probs, early, last)
        totals = torch.where(is_done, totals, totals + best)
        is_done = is_done | (tokens == EOS_ID).squeeze(1) | ~(best > -torch.inf)
        new.append(tokens)
        if len(new) < _STEPS_BETWEEN_LOOKS and length < max(longest):
            continue
        history, new = torch.cat((history, *new), dim=1), []
        ended = is_done.cpu()
        if not bool(ended.any()):
            continue
        rows = ended.nonzero().squeeze(1)
        found = zip(sentences[rows].tolist(), *_on_host(history, totals, rows), strict=True)
        for sentence, ids, total in found:
            if total > -torch.inf:
                ids = ids[: ids.index(EOS_ID)]
                score = total / penalty(len(ids) + 1)
                results[sentence] = [Hypothesis(tuple(ids), total, score)]
        active = (~ended).nonzero().squeeze(1)
        sentences, limits = sentences[active], limits[:, active]
        active = active.to(device)
        history, tokens, totals, is_done = (
            x.index_select(0, active) for x in (history, tokens, totals, is_done)
        )
        own_limits = own_limits.index_select(1, active)
        if len(sentences):
            state = stepper.select(state, active, torch.zeros_like(tokens))
    return results


def _choose(log_probs: Tensor, early: Tensor | None, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the first of the most probable tokens, (B, 1), int64, and its log probability, (B,).

    Overwrites ``log_probs`` (B, 1, V), float32. EOS may not come where ``early`` (B,), and nothing
    else where ``last`` (B,).
    """
    log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
    ends = log_probs[..., EOS_ID]  # (B, 1), a view
    if early is not None:
        ends.masked_fill_(early.unsqueeze(1), -torch.inf)
        renormalize(log_probs, early)
    if last is not None:
        kept = ends.clone()
        log_probs.masked_fill_(last[:, None, None], -torch.inf)
        ends.copy_(kept)
    best, tokens = log_probs.squeeze(1).max(dim=-1, keepdim=True)
    return tokens, best.squeeze(1)


def _on_host(history: Tensor, totals: Tensor, rows: Tensor) -> tuple[list[list[int]], list[float]]:
    return history.cpu()[rows].tolist(), totals.cpu()[rows].tolist()
