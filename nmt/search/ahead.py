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
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN

if TYPE_CHECKING:
    from nmt.search.loop import Stepper

S = TypeVar("S")
_STEPS_BETWEEN_LOOKS = 4


def greedy_ahead(
    stepper: Stepper[S], source: Packed, longest: Tensor, penalty: LengthPenalty
) -> list[list[Hypothesis]]:
    """Append the most probable token until EOS, or until EOS alone may come.

    Args:
        stepper: Gives probabilities.
        source: Source ids, each sentence ending in EOS.
        longest: Longest output of each sentence with EOS. (B,), int64, on the CPU.
        penalty: Divides the log probability of an output.

    Returns:
        One hypothesis of each sentence; none where no token was possible.
    """
    device, results = source.ids.device, [list[Hypothesis]() for _ in longest]
    sentences, state, length = torch.arange(len(longest)), stepper.start(source), 0
    limits, history = longest.to(device), torch.empty(len(longest), 0, dtype=torch.int64).to(device)
    tokens = torch.full((len(longest), 1), BOS_ID, device=device)
    totals = torch.zeros(len(longest), device=device)
    is_done, new = torch.zeros_like(totals, dtype=torch.bool), list[Tensor]()
    first_limit, last_limit = min(longest.tolist(), default=0), max(longest.tolist(), default=0)
    while len(sentences):
        log_probs, state = stepper.step(state, tokens)
        length += 1
        is_last = limits <= length if length >= first_limit else None
        tokens, best = _choose(log_probs[:, 0], is_last)
        totals = torch.where(is_done, totals, totals + best)
        is_done = is_done | (tokens == EOS_ID).squeeze(1) | ~(best > -torch.inf)
        new.append(tokens)
        if len(new) < _STEPS_BETWEEN_LOOKS and length < last_limit:
            continue
        history, new = torch.cat((history, *new), dim=1), []
        ended = is_done.cpu()
        if not bool(ended.any()):
            continue
        rows = ended.nonzero().squeeze(1)
        found = zip(sentences[rows].tolist(), *_on_host(history, totals, rows), strict=True)
        for sentence, ids, total in found:
            if EOS_ID in ids and total > -torch.inf:
                ids = ids[: ids.index(EOS_ID)]
                score = total / penalty(len(ids) + 1)
                results[sentence] = [Hypothesis(tuple(ids), total, score)]
        active = (~ended).nonzero().squeeze(1)
        sentences, longest = sentences[active], longest[active]
        active = active.to(device)
        history, tokens, totals, is_done, limits = (
            x.index_select(0, active) for x in (history, tokens, totals, is_done, limits)
        )
        if len(sentences):
            first_limit, last_limit = int(longest.min()), int(longest.max())
            state = stepper.select(state, active, torch.zeros_like(tokens))
    return results


def _choose(log_probs: Tensor, is_last: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the first of the most probable tokens, (B, 1), int64, and its log probability, (B,).

    Overwrites ``log_probs`` (B, V), float32. EOS alone may come where ``is_last`` (B,).
    """
    log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
    if is_last is not None:
        ends = log_probs[:, EOS_ID].clone()
        log_probs.masked_fill_(is_last.unsqueeze(1), -torch.inf)
        log_probs[:, EOS_ID] = ends
    best, tokens = log_probs.max(dim=-1, keepdim=True)
    return tokens, best.squeeze(1)


def _on_host(history: Tensor, totals: Tensor, rows: Tensor) -> tuple[list[list[int]], list[float]]:
    return history.cpu()[rows].tolist(), totals.cpu()[rows].tolist()
