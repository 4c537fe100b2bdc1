"""Which tokens may come next."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.text.special import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_NEVER = (PAD_ID, UNK_ID, BOS_ID)


def forbid(log_probs: Tensor, length: int, shortest: Tensor, longest: Tensor) -> None:
    """Set the log probability of tokens that may not come next to minus infinity, in place.

    Padding, unknown and BOS never come; EOS not before the shortest length; at the longest length
    nothing but EOS, so that every hypothesis ends and counts the probability of its end.

    Args:
        log_probs: (B, K, V), float32.
        length: Length that the hypotheses have with this token.
        shortest: Shortest length with EOS. (B,), int64; on the CPU, to wait for no device.
        longest: Longest length with EOS. The same.
    """
    for index in _NEVER:
        log_probs[..., index] = -torch.inf
    if bool((shortest > length).any()):
        log_probs[shortest > length, :, EOS_ID] = -torch.inf
    last = longest <= length
    if bool(last.any()):
        ends = log_probs[last][..., EOS_ID].clone()
        log_probs[last] = -torch.inf
        log_probs[last, :, EOS_ID] = ends
