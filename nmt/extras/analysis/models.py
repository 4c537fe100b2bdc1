"""Given translations -> what a model that is evaluated says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.commands.evaluate import EvaluatedModel

if TYPE_CHECKING:
    from nmt.inference.scorer import Scorer


def load_scorer(model: EvaluatedModel) -> Scorer:
    """Load the weights of a model to score or align translations."""
    from nmt.inference.scorer import Scorer  # noqa: PLC0415 - loads torch, reports of files do not

    names = ("device", "checkpoint", "threads", "ensemble")
    return Scorer.load(model.folder, **{name: model.loading[name] for name in names})
