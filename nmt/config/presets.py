"""Named values to start from, in presets.yaml: model presets, recipes, values by corpus size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nmt.config.filling import filled_in

_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclass(frozen=True)
class Scale:
    """Hyperparameters for a corpus of up to ``max_characters``, both languages together."""

    max_characters: float
    sections: Mapping[str, Mapping[str, Any]]  # Of a configuration.


_PRESETS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
MODEL_PRESETS: Mapping[str, Mapping[str, Any]] = _PRESETS["models"]
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = _PRESETS["recipes"]
SCALES = tuple(Scale(**values) for values in _PRESETS["scales"])  # From small to large.


def scale_of(num_characters: int) -> Scale:
    """Return the hyperparameters for a corpus of this size."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def with_scale(values: Mapping[str, Any], num_characters: int) -> dict[str, Any]:
    """Add values for a corpus of ``num_characters`` to a configuration."""
    recipe = RECIPES.get(str(values.get("recipe")), {})  # has its own dropout
    sections = filled_in(recipe, scale_of(num_characters).sections)
    return filled_in(values, sections)


def usual_vocab_size(num_pairs: int) -> int:
    """Return the usual vocabulary size for a number of sentence pairs (a rule of thumb).

    It is proportional to ``num_pairs ** 0.4``, from 2,000 for 5,000 pairs to the published 32,000
    for 4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    wanted = 2000 * (num_pairs / 5000) ** 0.4
    return min(_VOCAB_SIZES, key=lambda size: abs(size - wanted) / size)
