"""The largest values of rows, equals in a fixed order. Pure.

Shapes: V values in a row, n blocks of `_BLOCK` values.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64
_FEW = 1 << 15  # values that one plain search is quicker for


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest of each row and where they are, on the CPU, best first.

    Of equals the first in the row comes first. `torch.topk` promises no order, so one more than
    asked for is looked at: a row that shows equals is sorted, which is slow and rare.

    Args:
        values: (..., V), float32. Minus infinity stands for what is not there.
        count: How many; all V of a shorter row.

    Returns:
        Values (..., min(count, V)), float32, and indices, int64.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
    (tensor([3., 3.]), tensor([1, 3]))
    """
    best, index = (x.cpu() for x in _topk(values, min(count + 1, values.shape[-1])))
    tied = ((best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -torch.inf)).any(-1)
    if bool(tied.any()):
        ordered = torch.sort(values[tied], dim=-1, descending=True, stable=True)
        width = best.shape[-1]
        best[tied], index[tied] = (x[..., :width].cpu() for x in ordered)
    return best[..., :count], index[..., :count]


def first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest of each row and where it stands first. `torch.max`, but fast on a CPU.

    Args:
        values: (..., V), float32.

    Returns:
        Values (...), float32, and indices, int64, on the device of ``values``.

    >>> first_largest(torch.tensor([1.0, 3.0, 2.0, 3.0]))
    (tensor(3.), tensor(1))
    """
    num_blocks = values.shape[-1] // _BLOCK
    whole = num_blocks * _BLOCK
    if values.numel() < _FEW or values.shape[-1] != whole:
        best, index = values.max(dim=-1)
        return best, index
    blocks = values.unflatten(-1, (num_blocks, _BLOCK))  # (..., n, _BLOCK)
    best, block = blocks.amax(-1).max(dim=-1)
    inside = blocks.gather(-2, block[..., None, None].expand(*block.shape, 1, _BLOCK))
    return best, block * _BLOCK + inside.squeeze(-2).argmax(-1)


def _topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk`, in half the time for long rows: blocks with the largest peaks, then inside."""
    num_blocks = values.shape[-1] // _BLOCK
    if num_blocks < 4 * count:
        best, index = values.topk(count, dim=-1)
        return best, index
    whole = num_blocks * _BLOCK
    blocks = values[..., :whole].unflatten(-1, (num_blocks, _BLOCK))  # (..., n, _BLOCK)
    chosen = blocks.amax(-1).topk(count, dim=-1, sorted=False).indices
    inside = blocks.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, _BLOCK))
    places = chosen.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=values.device)
    rest = torch.arange(whole, values.shape[-1], device=values.device)
    candidates = torch.cat((inside.flatten(-2), values[..., whole:]), dim=-1)
    where = torch.cat((places.flatten(-2), rest.expand(*chosen.shape[:-1], -1)), dim=-1)
    best, index = candidates.topk(count, dim=-1)
    return best, where.gather(-1, index)
