"""Outputs that begin with given ids, or are drawn to them.

Shapes: B sentences still searched, K beams, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmt.search.constraints import Ids
from nmt.text import PAD_ID


class Forced(NamedTuple):
    """The next tokens of the sentences that are still in their prefix."""

    rows: Tensor
    """Which of B. (F,), int64, on the device of the log probabilities; as all here."""
    tokens: Tensor
    """The only token that may come. (F,), int64."""
    log_probs: Tensor
    """Its log probability, before all rules. (F, K), float32."""

    def apply(self, log_probs: Tensor) -> None:
        """Make everything else impossible, in place. (B, K, V), float32."""
        log_probs[self.rows] = -torch.inf
        log_probs[self.rows, :, self.tokens] = self.log_probs


class ForcedPrefix:
    """Prefixes that every hypothesis must begin with; their probabilities count.

    Args:
        prefixes: Of each sentence; empty for none.
    """

    def __init__(self, prefixes: Sequence[Ids]) -> None:
        self._table, self._lengths = _padded(prefixes)

    def find(self, log_probs: Tensor, alive: Tensor, history: Tensor) -> Forced | None:
        """Note what is forced, before other rules change it. See `nmt.search.rules.Edit`."""
        length = history.shape[-1]
        rows = (self._lengths[alive] > length).nonzero().squeeze(1)
        if not len(rows):
            return None
        tokens = self._table[alive[rows], length].to(log_probs.device)
        rows = rows.to(log_probs.device)
        return Forced(rows, tokens, log_probs[rows, :, tokens])


class BiasedPrefix:
    """Draws hypotheses to a prefix as long as they agree with it (Arivazhagan et al. 2020).

    The next token of the prefix gets the share beta of the probability, all tokens together the
    rest: (1 - beta) p + beta [token is the prefix's]. An `Edit`, for log probabilities that no rule
    has changed.

    Args:
        prefixes: Of each sentence; empty for none.
        beta: The share, above 0 and below 1.
    """

    def __init__(self, prefixes: Sequence[Ids], beta: float) -> None:
        self._table, self._lengths = _padded(prefixes)
        self._gain, self._loss = math.log(beta), math.log1p(-beta)

    def __call__(self, log_probs: Tensor, alive: Tensor, history: Tensor) -> None:
        """Apply. See `nmt.search.rules.Edit`."""
        length = history.shape[-1]
        if length >= self._table.shape[1]:
            return
        prefixes = self._table[alive, :length].unsqueeze(1)  # (B, 1, t)
        agrees = (history == prefixes).all(-1) & (self._lengths[alive] > length).unsqueeze(1)
        rows, beams = agrees.nonzero(as_tuple=True)
        if not len(rows):
            return
        tokens = self._table[alive[rows], length].to(log_probs.device)
        rows, beams = rows.to(log_probs.device), beams.to(log_probs.device)
        log_probs[rows, beams] += self._loss
        gain = torch.tensor(self._gain, device=log_probs.device)
        log_probs[rows, beams, tokens] = torch.logaddexp(log_probs[rows, beams, tokens], gain)


def _padded(prefixes: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Ids (sentences, longest) and lengths (sentences,)."""
    rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
    lengths = torch.tensor([len(prefix) for prefix in prefixes])
    return pad_sequence(rows, batch_first=True, padding_value=PAD_ID), lengths
