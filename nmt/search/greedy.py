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
    shortest, longest = length_limits(source_lengths, config)
    penalty = length_penalty(config)
    results: list[list[Hypothesis]] = [[] for _ in range(len(source))]
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source), device=source.device)
    tokens = torch.full((len(source), 1), BOS_ID, device=source.device)
    totals = torch.zeros(len(source), device=source.device)
    history = tokens[:, :0]
    length = 0
    while len(alive):
        length += 1
        log_probs, state = stepper.step(state, tokens)
        forbid(log_probs, length, shortest, longest)
        best, ids = log_probs[:, 0].max(dim=-1)
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
            state = stepper.select(state, stay, torch.zeros_like(stay).unsqueeze(1))
            alive, totals, ids, history = alive[stay], totals[stay], ids[stay], history[stay]
            shortest, longest = shortest[stay], longest[stay]
        tokens = ids.unsqueeze(1)
        history = torch.cat((history, tokens), dim=1)
    return results
