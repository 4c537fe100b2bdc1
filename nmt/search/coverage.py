"""What a hypothesis loses for source tokens that it has hardly read. Pure.

Shapes: B sentences, S source positions, K beams.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = torch.finfo(torch.float32).tiny  # a score must stay a number


def coverage_penalty(coverage: Tensor, source_lengths: Tensor, weight: float) -> Tensor:
    """Return weight x sum over source tokens of log(min(coverage, 1)): at most 0.

    Source: Wu et al. (2016), section 7. The EOS of the source is left out: nothing of it is to be
    translated, and how much of it is read says where the decoder looks when it needs no word.

    Args:
        coverage: How much of each source token all steps have read together. (B, K, S), float32.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        weight: The paper's beta.

    Returns:
        (B, K), float32.

    >>> coverage_penalty(torch.tensor([[[0.5, 2.0, 0.1]]]), torch.tensor([3]), 2.0)
    tensor([[-1.3863]])
    """
    places = torch.arange(coverage.shape[-1], device=coverage.device)
    words = places < (source_lengths - 1).unsqueeze(-1)  # (B, S)
    logs = coverage.clamp(_LEAST, 1).log().masked_fill(~words.unsqueeze(1), 0)
    return weight * logs.sum(-1)
