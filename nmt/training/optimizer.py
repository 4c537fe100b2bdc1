"""Gradients -> other weights, by one of several rules; and which weights are the result.

Most rules train the weights that are then used. Two do not: schedule-free AdamW trains at one
point and uses another, and a running mean (EMA) may be kept beside any rule. `Optimizer` hides the
difference: `weights` are the ones to be used and saved, `state` is the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.errors import CheckpointError
from nmt.model.factory import fused_rows
from nmt.model.transformer import Transformer
from nmt.training.muon import Muon
from nmt.training.parameters import FlatParameters, copy_tensors
from nmt.training.rule import AdamW, Rule
from nmt.training.schedule_free import ScheduleFreeAdamW

_TRAINED = "trained/"
"""Prefix of the trained weights in `Optimizer.state`, where they are not the ones to be used."""
_AVERAGE_WARMUP = 10


class Optimizer:
    """Changes the weights of one model. See the module.

    Args:
        parameters: The model's parameters.
        rule: Changes them.
        ema_decay: Share of the running mean of the weights that is kept at each update; the mean
            is then the one to be used. After t updates it is at most (1 + t) / (10 + t), so that
            the first weights are soon forgotten. None keeps no mean.
    """

    def __init__(
        self, parameters: FlatParameters, rule: Rule, *, ema_decay: float | None = None
    ) -> None:
        self.parameters = parameters
        self._rule = rule
        self._ema_decay = ema_decay
        self._ema = parameters.weights.clone() if ema_decay is not None else None
        self._not_skipped = torch.zeros((), device=parameters.weights.device)

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the whole gradient, a scalar."""
        return torch.linalg.vector_norm(self.parameters.gradient)

    @torch.no_grad()
    def step(
        self, learning_rate: float, gradient_scale: Tensor | float, skipped: Tensor | None = None
    ) -> None:
        """Update with the gradient times ``gradient_scale``, then clear the gradient.

        Where ``skipped`` (a float32 scalar on the device) is 1, nothing changes, whatever the
        gradient and its scale are; None is 0. Which it is, this process does not need to know.
        """
        skipped = self._not_skipped if skipped is None else skipped
        kept = 1 - skipped
        # Of a skipped update that leaves zeros and NaN.
        self.parameters.gradient.mul_(gradient_scale * kept)
        self._rule.step(learning_rate, skipped)
        if self._ema is not None and self._ema_decay is not None:
            count = self._rule.scalars["step"]
            grown = (1 + count) / (_AVERAGE_WARMUP + count)
            share = (1 - grown.clamp(max=self._ema_decay)) * kept
            self._ema.lerp_(self.parameters.weights, share)
        self.parameters.clear()
        self.parameters.publish()

    def _used(self) -> Tensor | None:
        return self._ema if self._ema is not None else self._rule.used()

    @contextmanager
    def used_weights(self) -> Iterator[None]:
        """Give the model the weights to be used, while the context is open."""
        used = self._used()
        if used is None:
            yield
            return
        trained = self.parameters.weights.clone()
        self.parameters.show(used)
        try:
            yield
        finally:
            self.parameters.weights.copy_(trained)
            self.parameters.publish()

    def weights(self) -> dict[str, Tensor]:
        """Return the float32 weights to be used, by parameter name: views where possible."""
        used = self._used()
        flat = self.parameters.weights if used is None else used
        return {**dict(self.parameters.views(flat)), **dict(self.parameters.frozen())}

    def state(self) -> dict[str, Tensor]:
        """Return what an update depends on besides `weights`, by name: views, not copies."""
        state = {name: value.reshape(1) for name, value in self._rule.scalars.items()}
        for key, part in self._rule.buffers.items():
            views = self.parameters.views(part.values, part.begin)
            state |= {f"{key}/{name}": view for name, view in views}
        if self._used() is not None:
            trained = self.parameters.views(self.parameters.weights)
            state |= {f"{_TRAINED}{name}": view for name, view in trained}
        return state

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take over `weights` and `state` of a run with the same parameters.

        Raises:
            CheckpointError: A tensor is missing or has another shape, or another kind of optimizer
                made the state.
        """
        self.load_weights(weights)
        self._refuse_another_kind(state)
        if self._used() is not None:
            copy_tensors(state, self.parameters.views(self.parameters.weights), _TRAINED)
            self.parameters.publish()
        for key, part in self._rule.buffers.items():
            copy_tensors(state, self.parameters.views(part.values, part.begin), f"{key}/")
        scalars = ((name, value.view(1)) for name, value in self._rule.scalars.items())
        copy_tensors(state, scalars)

    def _refuse_another_kind(self, state: Mapping[str, Tensor]) -> None:
        own, has_trained = self.state(), any(name.startswith(_TRAINED) for name in state)
        if own.keys() <= state.keys() and (self._used() is not None or not has_trained):
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
        self.parameters.publish()
        self._rule.begin()
        if self._ema is not None:
            self._ema.copy_(self.parameters.weights)


def build_optimizer(
    model: Transformer,
    config: OptimizerConfig,
    dtype: torch.dtype,
    *,
    ema_decay: float | None = None,
) -> Optimizer:
    """Make the configured optimizer of ``model``, whose working weights are to be in ``dtype``."""
    parameters = FlatParameters(model, dtype)
    return Optimizer(parameters, _rule(parameters, model, config), ema_decay=ema_decay)


def _rule(parameters: FlatParameters, model: Transformer, config: OptimizerConfig) -> Rule:
    weights, gradient = parameters.weights, parameters.gradient
    matrices = parameters.matrix_size
    if config.kind == "schedule-free":
        return ScheduleFreeAdamW(weights, gradient, config, num_decayed=matrices)
    if config.kind == "muon":
        fused = fused_rows(model)

        def cut(flat: Tensor) -> list[Tensor]:
            views = parameters.views(flat)
            return [b for name, matrix in views for b in matrix.split(fused.get(name, len(matrix)))]

        others = AdamW(
            weights[matrices:], gradient[matrices:], config, num_decayed=0, begin=matrices
        )
        return Muon(weights[:matrices], gradient[:matrices], config, cut=cut, others=others)
    return AdamW(weights, gradient, config, num_decayed=matrices)
