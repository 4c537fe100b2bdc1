"""What a gradient does to weights: the seam of all optimizers, and AdamW.

Rules see flat buffers only. They know neither names nor the model: see `nmt.training.optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from nmt.config.training import OptimizerConfig


class Part(NamedTuple):
    """A buffer for some of the trained parameters, which follow each other."""

    begin: int
    """Where the first of them stands among all."""
    values: Tensor
    """(n,), float32."""


class Rule(Protocol):
    """How a gradient changes the weights. All tensors are flat.

    Scalars and buffers are on the device, and no rule reads them: that would wait for it.
    """

    @property
    def scalars(self) -> Mapping[str, Tensor]:
        """Counters that an update depends on; ``step`` counts the updates."""
        ...

    @property
    def buffers(self) -> Mapping[str, Part]:
        """All else that an update depends on."""
        ...

    def begin(self) -> None:
        """Forget all updates: training begins at the weights as they are now."""
        ...

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Change the weights in place.

        Args:
            learning_rate: Size of the step.
            skipped: 1 if nothing is to change, and the gradient is of zeros and NaN; else 0. A
                float32 scalar.
        """
        ...

    def used(self) -> Tensor | None:
        """Return the weights to be used, or None if they are the trained ones."""
        ...


class AdamW:
    """AdamW (Loshchilov and Hutter 2019), fused; decays the matrices only.

    Torch's function instead of its class: that one imports its compiler, which takes seconds.

    Args:
        weights: Changed by `step`. (n,), float32.
        gradient: Read by `step`. (n,), float32.
        config: The optimizer section.
        num_decayed: How many of the numbers, from the first, are decayed.
        begin: Where the first of them stands among all trained parameters.
    """

    def __init__(
        self,
        weights: Tensor,
        gradient: Tensor,
        config: OptimizerConfig,
        *,
        num_decayed: int,
        begin: int = 0,
    ) -> None:
        self._count = torch.zeros((), device=weights.device)
        self._config, self._begin = config, begin
        self._mean, self._square = torch.zeros_like(weights), torch.zeros_like(weights)
        parts = ((slice(0, num_decayed), config.weight_decay), (slice(num_decayed, None), 0.0))
        everything = (weights, gradient, self._mean, self._square)
        self._groups = [
            ([tensor[part] for tensor in everything], decay)
            for part, decay in parts
            if len(weights[part])
        ]

    @property
    def scalars(self) -> Mapping[str, Tensor]:
        """The count of updates."""
        return {"step": self._count}

    @property
    def buffers(self) -> Mapping[str, Part]:
        """Running means of gradient and squared gradient."""
        return {
            "exp_avg": Part(self._begin, self._mean),
            "exp_avg_sq": Part(self._begin, self._square),
        }

    def begin(self) -> None:
        """Forget all updates."""
        for tensor in (self._count, self._mean, self._square):
            tensor.zero_()

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Change the weights in place."""
        before = self._count.clone()
        for (weights, gradient, mean, square), decay in self._groups:
            self._count.copy_(before)  # each call counts
            adamw(
                [weights],
                [gradient],
                [mean],
                [square],
                max_exp_avg_sqs=[],
                state_steps=[self._count],
                fused=True,
                amsgrad=False,
                beta1=self._config.betas[0],
                beta2=self._config.betas[1],
                lr=learning_rate,
                weight_decay=decay,
                eps=self._config.epsilon,
                maximize=False,
                found_inf=skipped,
            )

    def used(self) -> None:
        """The trained weights are the ones to be used."""
        return
