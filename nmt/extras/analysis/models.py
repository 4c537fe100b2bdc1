"""Given translations -> what a model that is evaluated says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.commands.evaluate import EvaluatedModel
from nmt.registry import load_attribute

if TYPE_CHECKING:
    from nmt.inference.scorer import Scorer


def load_scorer(model: EvaluatedModel) -> Scorer:
    """Load the weights of a model to score or align translations."""
    names = ("device", "checkpoint", "threads", "ensemble")
    scorer = load_attribute("nmt.inference.scorer:Scorer")  # loads torch, reports of files do not
    return scorer.load(model.folder, **{name: model.loading[name] for name in names})
