"""Schedule-free AdamW: no end of training has to be known, and none is decayed to.

Defazio et al. (2024), "The Road Less Scheduled", algorithm 1 with the scaling of AdamW. Three
points move: z takes the steps, x is the running mean of z and is what one uses, and the gradient is
taken between them, at y = (1 - beta1) z + beta1 x. The model holds y while it trains.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.training.rule import Part


class ScheduleFreeAdamW:
    """See the module. Means weigh each step by its squared learning rate, as the paper does.

    Args:
        weights: The points y; changed by `step`. (n,), float32.
        gradient: Read by `step`. (n,), float32.
        config: The optimizer section; the first of ``betas`` places y.
        num_decayed: How many of the numbers, from the first, are decayed.
    """

    def __init__(
        self, weights: Tensor, gradient: Tensor, config: OptimizerConfig, *, num_decayed: int
    ) -> None:
        self._weights, self._gradient = weights, gradient
        self._config, self._num_decayed = config, num_decayed
        self._steps, self._square = torch.zeros_like(weights), torch.zeros_like(weights)
        # On the CPU: reading them must not wait for a device.
        self._count, self._total = (torch.zeros((), dtype=torch.float64) for _ in range(2))

    @property
    def scalars(self) -> Mapping[str, Tensor]:
        """The count of updates, and the sum of squared learning rates."""
        return {"step": self._count, "weight_sum": self._total}

    @property
    def buffers(self) -> Mapping[str, Part]:
        """The points z, and the running mean of the squared gradient."""
        return {"z": Part(0, self._steps), "exp_avg_sq": Part(0, self._square)}

    def step(self, learning_rate: float) -> None:
        """Change the weights in place."""
        placed, decay = self._config.betas
        if not self._count:
            self._steps.copy_(self._weights)
        self._count += 1
        self._total += learning_rate**2
        share = learning_rate**2 / total if (total := float(self._total)) else 0.0
        gradient, count = self._gradient, float(self._count)
        self._square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        scale = (self._square / (1 - decay**count)).sqrt_().add_(self._config.epsilon)
        change = gradient.div(scale)
        decayed = slice(0, self._num_decayed)
        change[decayed].add_(self._weights[decayed], alpha=self._config.weight_decay)
        self._weights.lerp_(self._steps, share)
        self._weights.sub_(change, alpha=learning_rate * (1 - placed * (1 - share)))
        self._steps.sub_(change, alpha=learning_rate)

    def used(self) -> Tensor:
        """Return the means x, worked out from y and z. All three begin at one point."""
        if not self._count:
            return self._weights
        return self._weights.lerp(self._steps, 1 - 1 / self._config.betas[0])
