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
        self._steps, self._square = weights.clone(), torch.zeros_like(weights)
        device = weights.device
        self._count, self._total = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(2)
        )

    @property
    def scalars(self) -> Mapping[str, Tensor]:
        """The count of updates, and the sum of squared learning rates."""
        return {"step": self._count, "weight_sum": self._total}

    @property
    def buffers(self) -> Mapping[str, Part]:
        """The points z, and the running mean of the squared gradient."""
        return {"z": Part(0, self._steps), "exp_avg_sq": Part(0, self._square)}

    def begin(self) -> None:
        """Forget all updates: the three points are one."""
        self._steps.copy_(self._weights)
        for tensor in (self._square, self._count, self._total):
            tensor.zero_()

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Change the weights in place."""
        placed, decay = self._config.betas
        kept, dtype = 1 - skipped.double(), self._weights.dtype
        self._count += kept
        self._total += kept * learning_rate**2
        share = (kept * learning_rate**2 / self._total).nan_to_num_()  # 0 / 0 at rates of zero
        correction = 1 - decay ** self._count.clamp(min=1)
        gradient = self._gradient.nan_to_num_(0, 0, 0)
        self._square.mul_((decay**kept).to(dtype)).addcmul_(gradient, gradient, value=1 - decay)
        scale = (self._square / correction.to(dtype)).sqrt_().add_(self._config.epsilon)
        change = torch.div(gradient, scale, out=scale)
        decayed = slice(0, self._num_decayed)
        change[decayed].add_(self._weights[decayed], alpha=self._config.weight_decay)
        rate = -learning_rate * kept
        self._weights.lerp_(self._steps, share.to(dtype))
        self._weights.addcmul_(change, (rate * (1 - placed * (1 - share))).to(dtype))
        self._steps.addcmul_(change, rate.to(dtype))

    def used(self) -> Tensor:
        """Return the means x, worked out from y and z. All three begin at one point."""
        return self._weights.lerp(self._steps, 1 - 1 / self._config.betas[0])
