"""Muon: steps of matrices are made orthogonal, so that all directions are learned alike.

Jordan et al. (2024), "Muon: an optimizer for hidden layers"; the size of a step is matched to
AdamW's as in Liu et al. (2025), "Muon is scalable for LLM training", section 2.2, so that one
learning rate serves the matrices and the rest, which AdamW trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.training.rule import AdamW, Part

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that drives singular values to about 1 (Jordan et al. 2024)."""
_RMS_OF_ADAMW = 0.2
"""Root mean square of AdamW's steps at learning rate 1 (Liu et al. 2025)."""


def orthogonalise(matrices: Tensor, num_iterations: int) -> Tensor:
    """Return nearly orthogonal matrices with the singular vectors of ``matrices``.

    Newton-Schulz iteration of fifth order: singular values end between about 0.7 and 1.2.

    Args:
        matrices: (n, rows, columns), with no more rows than columns.
        num_iterations: Five do for all but very small singular values; fewer are rougher.
    """
    a, b, c = _COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = matrices / (norms + 1e-7)
    for _ in range(num_iterations):
        gram = torch.bmm(x, x.mT)
        mixed = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, mixed, x, beta=a)
    return x


class Muon:
    """See the module.

    Args:
        weights: The matrices, flat; changed by `step`. (n,), float32.
        gradient: Read by `step`. (n,), float32.
        config: The optimizer section.
        cut: A flat buffer of the matrices -> a view of each matrix; one that was fused of several
            is cut apart.
        others: Trains the other parameters.
    """

    def __init__(
        self,
        weights: Tensor,
        gradient: Tensor,
        config: OptimizerConfig,
        *,
        cut: Callable[[Tensor], Sequence[Tensor]],
        others: AdamW,
    ) -> None:
        self._weights, self._gradient = weights, gradient
        self._momentum = torch.zeros_like(weights)
        self._config, self._others = config, others
        self._change = torch.empty_like(weights)
        shapes: dict[tuple[int, ...], list[Tensor]] = {}
        for change in cut(self._change):
            wide = change if change.shape[0] <= change.shape[1] else change.mT
            shapes.setdefault(tuple(wide.shape), []).append(wide)
        self._groups = list(shapes.values())

    @property
    def scalars(self) -> Mapping[str, Tensor]:
        """The count of updates."""
        return self._others.scalars

    @property
    def buffers(self) -> Mapping[str, Part]:
        """Momentum of the matrices, and AdamW's running means of the rest."""
        return {"momentum": Part(0, self._momentum), **self._others.buffers}

    def begin(self) -> None:
        """Forget all updates."""
        self._momentum.zero_()
        self._others.begin()

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Change the weights in place."""
        config = self._config
        kept, dtype = 1 - skipped.double(), self._weights.dtype
        gradient = self._gradient.nan_to_num_(0, 0, 0)
        self._momentum.lerp_(gradient, (kept * (1 - config.momentum)).to(dtype))
        torch.lerp(gradient, self._momentum, config.momentum, out=self._change)  # Nesterov
        for group in self._groups:
            orthogonal = orthogonalise(torch.stack(group), config.newton_schulz_steps)
            size = _RMS_OF_ADAMW * max(orthogonal.shape[1:]) ** 0.5
            for change, result in zip(group, orthogonal.unbind(), strict=True):
                torch.mul(result, size, out=change)
        self._weights.mul_((1 - kept * (learning_rate * config.weight_decay)).to(dtype))
        self._weights.addcmul_(self._change, (kept * -learning_rate).to(dtype))
        self._others.step(learning_rate, skipped)

    def used(self) -> None:
        """The trained weights are the ones to be used."""
        return
