"""What training minimises: the seam of all losses, and their registry.

A loss travels as a sum with the number of its tokens and is divided once, over all micro-batches
and processes. To add one, write an `Objective` in a new file and `register_objective` it; the key
``training.objective`` chooses by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from nmt.config.keys import chosen
from nmt.config.training import TrainingConfig
from nmt.data.batch import Batch
from nmt.model.transformer import Transformer
from nmt.training.losses import CrossEntropyForm, r_drop_loss


class LossSum(NamedTuple):
    """A loss before division, so that sums over batches and devices stay exact."""

    loss_sum: Tensor
    """Loss summed over the tokens, in nats: a scalar in float32."""
    num_tokens: int
    """Target tokens summed over, without padding."""


class Objective(Protocol):
    """A loss of a model on a batch, called under autocast."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``, which is on the model's device."""
        ...


ObjectiveConstructor = Callable[[TrainingConfig, CrossEntropyForm], Objective]

OBJECTIVES: dict[str, ObjectiveConstructor] = {}


def register_objective(name: str, constructor: ObjectiveConstructor) -> None:
    """Make a loss available as ``training.objective: name``."""
    OBJECTIVES[name] = constructor


def build_objective(config: TrainingConfig, form: CrossEntropyForm) -> Objective:
    """Return the configured loss.

    Raises:
        ConfigError: There is none of that name.
    """
    return chosen(OBJECTIVES, objective_name(config), "training.objective")(config, form)


def objective_name(config: TrainingConfig) -> str:
    """Resolve ``auto``: R-Drop where its weight is set, else cross-entropy."""
    if config.objective != "auto":
        return config.objective
    return "r_drop" if config.r_drop else "cross_entropy"


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Label-smoothed cross-entropy of the references."""

    smoothing: float
    """Probability spread evenly over the vocabulary."""
    form: CrossEntropyForm
    """How it is computed: see `choose_form`."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``."""
        hidden = model(batch.source, batch.target)
        weight, bias = model.output_weight, model.output_bias
        loss = self.form(hidden, weight, bias, batch.gold, self.smoothing, model.compiled)
        return LossSum(loss, batch.num_target_tokens)


@dataclass(frozen=True, slots=True)
class RDrop:
    """R-Drop: cross-entropy and divergence of two passes with different dropout masks."""

    smoothing: float
    """Probability spread evenly over the vocabulary."""
    strength: float
    """Weight of the divergence (alpha in the paper; 5 there for translation)."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed objective of two passes over ``batch``."""
        loss = r_drop_loss(
            (model(batch.source, batch.target), model(batch.source, batch.target)),
            model.output_weight,
            model.output_bias,
            batch.gold,
            smoothing=self.smoothing,
            strength=self.strength,
            compiler=model.compiled,
        )
        return LossSum(loss, batch.num_target_tokens)


register_objective("cross_entropy", lambda config, form: CrossEntropy(config.label_smoothing, form))
register_objective("r_drop", lambda config, _form: RDrop(config.label_smoothing, config.r_drop))
