"""Flags of several models that work together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.runtime.ensemble import Ensemble


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
    MeanKind | None,
    typer.Option(
        "--ensemble-mean",
        help="Mean of the probabilities, or of their logarithms.",
        show_default=MeanKind.arithmetic.value,
    ),
]


def make_ensemble(
    others: Sequence[Path], weights: str | None, mean: MeanKind | None
) -> Ensemble | None:
    """Return what the flags say; None without other models and weights.

    Raises:
        ConfigError: The weights are none, or not as many as the models; or a mean of one model is
            asked for.
    """
    if not others and mean is not None:
        raise ConfigError(
            "--ensemble-mean says nothing without --with.",
            fix="Add --with MODEL2, or leave it out.",
        )
    if not others and weights is None:
        return None
    from nmt.runtime.ensemble import Ensemble, parse_weights

    mean = mean or MeanKind.arithmetic
    ensemble = Ensemble(tuple(others), parse_weights(weights), mean.value)
    ensemble.shares()  # before anything slow is loaded
    return ensemble
