"""Output projections for translating: of other forms than training has, and to few tokens.

Shapes: I inputs, O outputs, D model width, V' tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


class Projection(NamedTuple):
    """A projection to few outputs O, as what can be recorded; see `project`."""

    weight: Tensor
    """(O, I); whole numbers if inputs are rounded."""
    bias: Tensor
    """(O,), or (0,) if there is none."""
    scales: Tensor
    """What whole numbers stand for, of each output: (O,); (0,) if inputs are not rounded."""
    inverse: Tensor
    """1 / scale of the inputs. ()."""
    zero: int
    """Inputs are cut where they do not fit into 8 bits, of which this number stands for 0."""
    is_fixed: bool
    """Whether the scale is the same for all rows; or else for rows divided by their largest."""


def project(values: Tensor, projection: Projection) -> Tensor:
    """(..., I) -> (..., O). It can be recorded.

    Sums of products of small whole numbers are exact in float32.
    """
    if projection.scales.shape[0] == 0:
        bias = projection.bias if projection.bias.shape[0] else None
        return F.linear(values, projection.weight, bias)
    whole, largest = whole_inputs(values, projection)
    return scaled_products(F.linear(whole, projection.weight), largest, projection)


def whole_inputs(values: Tensor, projection: Projection) -> tuple[Tensor, Tensor | None]:
    """Round values (..., I), and return the largest of each row if that has a scale of its own."""
    inverse: Tensor = projection.inverse
    largest: Tensor | None = None
    if not projection.is_fixed:
        # A row of zeros is one of whole zeros.
        largest = values.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
        inverse = inverse / largest
    return (values * inverse).round_().clamp_(-projection.zero, 255 - projection.zero), largest


def scaled_products(products: Tensor, largest: Tensor | None, projection: Projection) -> Tensor:
    """Return what products of whole numbers (..., O) stand for, in place."""
    products.mul_(projection.scales)
    if largest is not None:
        products.mul_(largest)
    return products.add_(projection.bias) if projection.bias.shape[0] else products


@dataclass(frozen=True, slots=True)
class NarrowOutput:
    """Gives the logits of few tokens."""

    projection: Projection

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V')."""
        return project(hidden, self.projection)


class OutputLayer(nn.Module, ABC):
    """An output projection in a form of its own, for translating."""

    @abstractmethod
    def narrow(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what gives the logits of ``tokens`` (V',), int64, alone: (..., D) -> (..., V')."""
