"""The largest values of rows, equals in a fixed order. Pure.

Torch looks at every value of a row one after the other. To find the peaks of blocks first, and then
to look into the few best blocks only, takes a fraction of the time.

Shapes: V values in a row, n blocks of them.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

_SIZES = sorted(range(32, 129), key=lambda size: abs(size - 64))
_FEW = 1 << 12  # values that one plain search is quicker for


@cache
def _block_size(width: int) -> int:
    """Return a size of blocks that divides rows evenly; all of the row if there is none."""
    return next((size for size in _SIZES if width % size == 0), width)


def _blocks(values: Tensor) -> Tensor:
    """(..., V) -> (..., n, size): one block where one plain search is quicker."""
    width = values.shape[-1]
    return values.unflatten(-1, (-1, width if values.numel() < _FEW else _block_size(width)))


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
    more, blocks = min(count + 1, values.shape[-1]), _blocks(values)
    if blocks.shape[-2] < 4 * more:
        best, index = values.topk(more, dim=-1)
    else:
        block = blocks.amax(-1).topk(more, dim=-1, sorted=False).indices
        inside, size = blocks.take_along_dim(block.unsqueeze(-1), -2), blocks.shape[-1]
        best, place = inside.flatten(-2).topk(more, dim=-1)
        index = block.gather(-1, place // size) * size + place % size
    best, index = best.cpu(), index.cpu()
    tied = best[..., 1:] == best[..., :-1]
    if bool(tied.any()):
        rows = (tied & (best[..., 1:] > -math.inf)).any(-1)
        tied_values = values[rows.to(values.device)]
        ordered, places = torch.sort(tied_values, stable=True, dim=-1, descending=True)
        best[rows], index[rows] = ordered[..., :more].cpu(), places[..., :more].cpu()
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
    blocks = _blocks(values)  # (..., n, size)
    if blocks.shape[-2] == 1:
        best, index = values.max(dim=-1)
        return best, index
    best, block = blocks.amax(-1).max(dim=-1)
    inside = blocks.take_along_dim(block[..., None, None], -2)
    return best, block * blocks.shape[-1] + inside.squeeze(-2).argmax(-1)
