"""Flags of several models that work together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nmt.translation.ensemble import Ensemble


class MeanKind(StrEnum):
    """How predictions are averaged."""

    arithmetic = "arithmetic"
    geometric = "geometric"


With = Annotated[
    list[Path],
    typer.Option(
        "--with",
        metavar="MODEL2",
        help="Another model of the same languages and vocabulary, whose predictions are averaged "
        "with those of MODEL. Repeatable.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="W,W,...",
        help="Weights of MODEL and of each --with, as in 2,1,1.",
        show_default="equal",
    ),
]
MeanOption = Annotated[
    MeanKind,
    typer.Option("--ensemble-mean", help="Mean of the probabilities, or of their logarithms."),
]


def make_ensemble(others: Sequence[Path], weights: str | None, mean: MeanKind) -> Ensemble | None:
    """Return what the flags say; None without other models and weights.

    Raises:
        ConfigError: The weights are none, or not as many as the models.
    """
    if not others and weights is None:
        return None
    from nmt.translation.ensemble import Ensemble, parse_weights

    ensemble = Ensemble(tuple(others), parse_weights(weights), mean.value)
    ensemble.shares()  # before anything slow is loaded
    return ensemble
