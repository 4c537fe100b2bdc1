"""The optimizer of one model: which weights are trained, which are used, and what is saved.

Most optimizers train the weights that are then used. Two ways do not: schedule-free AdamW trains at
one point and uses another, and an exponential moving average (EMA) may be kept beside any
optimizer. `ModelOptimizer` hides the difference: `weights` are the ones to use and save, `state`
is the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from nmt.config.keys import chosen
from nmt.config.training import OptimizerConfig
from nmt.errors import CheckpointError
from nmt.model.transformer import Transformer
from nmt.training.optimizers import OPTIMIZERS, Optimizer
from nmt.training.parameters import FlatParameters, copy_tensors

_TRAINED = "trained/"
"""Prefix of the trained weights in `ModelOptimizer.state`, where others are to be used."""
_AVERAGE_WARMUP = 10


class ModelOptimizer:
    """Changes the weights of one model. See the module.

    Args:
        parameters: The model's parameters.
        optimizer: Changes them.
        ema_decay: Decay of the running mean of the weights, which is then used in their place.
            After t updates it is at most (1 + t) / (10 + t), so that the first weights are soon
            forgotten. None keeps no mean.
    """

    def __init__(
        self, parameters: FlatParameters, optimizer: Optimizer, *, ema_decay: float | None = None
    ) -> None:
        self.parameters = parameters
        self._optimizer = optimizer
        self._ema_decay = ema_decay
        self._ema = parameters.weights.clone() if ema_decay is not None else None
        self._never = torch.zeros((), device=parameters.weights.device)

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the whole gradient, a scalar."""
        return torch.linalg.vector_norm(self.parameters.gradient)

    @torch.no_grad()
    def step(
        self, learning_rate: float, gradient_scale: Tensor | float, skipped: Tensor | None = None
    ) -> None:
        """Update with the gradient times ``gradient_scale``, then clear the gradient.

        Where ``skipped`` (a float32 scalar on the device) is 1, nothing changes, whatever the
        gradient and its scale are; None is 0. The host does not wait to learn which it is.
        """
        skipped = self._never if skipped is None else skipped
        not_skipped = 1 - skipped
        # Of a skipped update that leaves zeros and NaN.
        self.parameters.gradient.mul_(gradient_scale * not_skipped)
        self._optimizer.step(learning_rate, skipped)
        if self._ema is not None and self._ema_decay is not None:
            count = self._optimizer.step_count
            grown = (1 + count) / (_AVERAGE_WARMUP + count)
            share = (1 - grown.clamp(max=self._ema_decay)) * not_skipped
            self._ema.lerp_(self.parameters.weights, share)
        self.parameters.clear()
        self.parameters.sync_from_master()

    def _eval_weights(self) -> Tensor | None:
        return self._ema if self._ema is not None else self._optimizer.eval_weights()

    @contextmanager
    def eval_weights(self) -> Iterator[None]:
        """Give the model the weights to validate with, while the context is open."""
        weights = self._eval_weights()
        if weights is None:
            yield
            return
        trained = self.parameters.weights.clone()
        self.parameters.load_into_model(weights)
        try:
            yield
        finally:
            self.parameters.weights.copy_(trained)
            self.parameters.sync_from_master()

    def weights(self) -> dict[str, Tensor]:
        """Return the float32 weights to use, by parameter name: views where possible."""
        weights = self._eval_weights()
        flat = self.parameters.weights if weights is None else weights
        return {**dict(self.parameters.views(flat)), **dict(self.parameters.frozen())}

    def state(self) -> dict[str, Tensor]:
        """Return what an update depends on besides `weights`, by name: views, not copies."""
        return self._optimizer.state() | self._trained()

    def _trained(self) -> dict[str, Tensor]:
        """Return the trained weights by name, where they are not the ones to use."""
        if self._eval_weights() is None:
            return {}
        views = self.parameters.views(self.parameters.weights)
        return {f"{_TRAINED}{name}": view for name, view in views}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take over `weights` and `state` of a run with the same parameters.

        Raises:
            CheckpointError: A tensor is missing or has another shape, or another kind of optimizer
                made the state.
        """
        self.load_weights(weights)
        self._refuse_another_kind(state)
        copy_tensors(state, iter(self.state().items()))
        self.parameters.sync_from_master()

    def _refuse_another_kind(self, state: Mapping[str, Tensor]) -> None:
        own, has_trained = self.state(), any(name.startswith(_TRAINED) for name in state)
        if own.keys() <= state.keys() and (self._trained() or not has_trained):
            return
        found, needed = (
            ", ".join(sorted({name.split("/")[0] for name in names})) for names in (state, own)
        )
        raise CheckpointError(
            f"The checkpoint is of another optimizer: it has {found or 'nothing'}, but this one "
            f"needs {needed}, each for its trained parameters.",
            fix="Resume with optimizer, ema_decay and freeze of the run's own config.yaml.",
        )

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Begin from ``weights``, with nothing else remembered.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
        """
        copy_tensors(weights, self.parameters.views(self.parameters.weights))
        copy_tensors(weights, self.parameters.frozen())
        self.parameters.sync_from_master()
        self._optimizer.reset()
        if self._ema is not None:
            self._ema.copy_(self.parameters.weights)


def build_optimizer(
    model: Transformer,
    config: OptimizerConfig,
    dtype: torch.dtype,
    *,
    ema_decay: float | None = None,
) -> ModelOptimizer:
    """Make the configured optimizer of ``model``, whose working weights are to be in ``dtype``.

    Raises:
        ConfigError: There is no optimizer of that name.
    """
    constructor = chosen(OPTIMIZERS, config.kind, "training.optimizer.kind")
    parameters = FlatParameters(model, dtype)
    return ModelOptimizer(parameters, constructor(parameters, config), ema_decay=ema_decay)
