"""Which values go with how much data: the defaults of a configuration without ``training``.

The sizes are those of the README's table, which says what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmt.config.run import RUN_PRESETS

_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclass(frozen=True, slots=True)
class Scale:
    """What goes with a corpus of up to ``max_pairs`` pairs."""

    max_pairs: float
    """Corpora of more pairs take the next one."""
    preset: str
    """Of the model."""
    dropout: float
    vocab_size: int
    max_tokens: int
    """Of a batch."""
    minutes: int
    """Of training, on two CPU cores; on one GPU for the largest."""
    peak_lr: float

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the values by section, as a configuration has them."""
        return {
            "tokenizer": {"vocab_size": self.vocab_size},
            "batch": {"max_tokens": self.max_tokens},
            "model": {"preset": self.preset, "dropout": self.dropout},
            "training": {
                "max_minutes": self.minutes,
                "schedule": {"shape": "linear", "peak_lr": self.peak_lr, "warmup": 0.06},
                "validate_every": 1000,
                "save_every": 1000,
            },
        }


SCALES = (
    Scale(15_000, "tiny", 0.3, 2000, 520, 20, 1e-3),
    Scale(90_000, "tiny", 0.2, 4000, 2048, 60, 1e-3),
    Scale(400_000, "tiny", 0.1, 8000, 4096, 180, 1e-3),
    Scale(float("inf"), "transformer-base", 0.1, 32_000, 16_384, 1440, 7e-4),
)
"""From small to large."""


def scale_of(num_pairs: int) -> Scale:
    """Return what goes with a corpus of so many pairs."""
    return next(scale for scale in SCALES if num_pairs <= scale.max_pairs)


def with_scale(values: Mapping[str, Any], num_pairs: int) -> dict[str, Any]:
    """Put the values that go with ``num_pairs`` below those of a configuration."""
    filled, preset = dict(values), RUN_PRESETS.get(str(values.get("preset")), {})
    for name, scaled in scale_of(num_pairs).sections().items():
        own = {} if values.get(name) is None else values[name]
        if name == "model" and values.get("preset") is not None:  # which has a dropout of its own
            del scaled["dropout"]
        filled[name] = (
            {**scaled, **preset.get(name, {}), **own} if isinstance(own, Mapping) else own
        )
    return filled


def usual_vocab_size(num_pairs: int) -> int:
    """Return a vocabulary size that is usual for so many pairs: a rule of thumb.

    It grows with the power 0.4 of the corpus, from 2,000 at 5,000 pairs to the published 32,000 at
    4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    wanted = 2000 * (num_pairs / 5000) ** 0.4
    return min(_VOCAB_SIZES, key=lambda size: abs(size - wanted) / size)
