"""What one process trains with."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.config.training import TrainingConfig
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.training.update import Updater
from nmt.training.validation import Validator


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What one process trains with; `nmt.commands.train_setup.build` puts it together."""

    training: TrainingConfig
    data: PreparedData
    updater: Updater  # of a model with new weights
    loader: Loader
    validator: Validator
