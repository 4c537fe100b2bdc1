"""The simplest search: always the most probable token. The yardstick of a beam of one."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import length_limits, length_penalty
from nmt.search.rules import forbid
from nmt.search.stepper import Stepper
from nmt.text.special import BOS_ID, EOS_ID

S = TypeVar("S")


@torch.inference_mode()
def greedy_search(
    stepper: Stepper[S], source: Tensor, source_lengths: Tensor, config: DecodingConfig
) -> list[list[Hypothesis]]:
    """Translate B sentences; finished ones leave the batch.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Length limits and penalty.

    Returns:
        One hypothesis in a list of its own for each sentence; none where no output is possible.
    """
    device = source.device
    shortest, longest = length_limits(source_lengths.cpu(), config)
    penalty = length_penalty(config)
    results: list[list[Hypothesis]] = [[] for _ in range(len(source))]
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source))
    tokens = torch.full((len(source), 1), BOS_ID)
    totals = torch.zeros(len(source))
    history = tokens[:, :0]
    length = 0
    while len(alive):
        length += 1
        log_probs, state = stepper.step(state, tokens.to(device))
        forbid(log_probs, length, shortest, longest)
        best, ids = (x.cpu() for x in log_probs[:, 0].max(dim=-1))  # of equals the lowest id
        totals = totals + best
        ends = (ids == EOS_ID) | best.isneginf()  # nothing may come: no translation
        if ends.any():
            done = ends.nonzero().squeeze(1)
            rows = zip(
                alive[done].tolist(), history[done].tolist(), totals[done].tolist(), strict=True
            )
            for sentence, found, total in rows:
                if math.isfinite(total):
                    results[sentence] = [Hypothesis(tuple(found), total, total / penalty(length))]
            stay = (~ends).nonzero().squeeze(1)
            only = torch.zeros(len(stay), 1, dtype=torch.int64, device=device)
            state = stepper.select(state, stay.to(device), only)
            alive, totals, ids, history = alive[stay], totals[stay], ids[stay], history[stay]
            shortest, longest = shortest[stay], longest[stay]
        tokens = ids.unsqueeze(1)
        history = torch.cat((history, tokens), dim=1)
    return results
