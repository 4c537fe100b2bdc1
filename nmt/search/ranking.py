"""The largest values of rows, equals in a fixed order. Pure.

Torch looks at every value of a row one after the other. To find the peaks of blocks first, and then
to look into the few best blocks only, takes a fraction of the time.

Shapes: V values in a row, n blocks of them.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_SIZES = sorted(range(32, 129), key=lambda size: abs(size - 64))
_FEW = 1 << 12  # values that one plain search is quicker for


@cache
def _block_size(width: int) -> int:
    """Return a size of blocks that divides a row evenly; the whole row if there is none."""
    return next((size for size in _SIZES if width % size == 0), width)


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
    tied = best[..., 1:] == best[..., :-1]
    if bool(tied.any()):
        tied = (tied & (best[..., 1:] > -torch.inf)).any(-1)
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
    size = _block_size(values.shape[-1])
    if size == values.shape[-1] or values.numel() < _FEW:
        best, index = values.max(dim=-1)
        return best, index
    blocks = values.unflatten(-1, (-1, size))  # (..., n, size)
    best, block = blocks.amax(-1).max(dim=-1)
    inside = blocks.gather(-2, block[..., None, None].expand(*block.shape, 1, size))
    return best, block * size + inside.squeeze(-2).argmax(-1)


def _topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk`, but fast on a CPU."""
    size = _block_size(values.shape[-1])
    if values.shape[-1] // size < 4 * count or values.numel() < _FEW:
        best, index = values.topk(count, dim=-1)
        return best, index
    blocks = values.unflatten(-1, (-1, size))  # (..., n, size)
    chosen = blocks.amax(-1).topk(count, dim=-1, sorted=False).indices
    inside = blocks.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, size))
    best, place = inside.flatten(-2).topk(count, dim=-1)
    return best, chosen.gather(-1, place // size) * size + place % size
