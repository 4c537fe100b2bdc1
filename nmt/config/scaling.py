"""Which values go with how much data: the defaults of a configuration without ``training``.

The sizes are those of the README's table, which says what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmt.config.run import MUON, RUN_PRESETS, filled_in

_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


@dataclass(frozen=True, slots=True)
class Scale:
    """What goes with a corpus of up to ``max_characters`` in both languages together."""

    # Larger corpora take the next one. Time goes by text: the same pairs may be long or short.
    max_characters: float
    preset: str  # Of the model.
    dropout: float
    vocab_size: int
    max_tokens: int  # Of a batch.
    minutes: int  # Of training, on two CPU cores; on one GPU for the largest.
    optimizer: Mapping[str, Mapping[str, Any]]  # Optimizer and schedule.
    validate_every: int = 500  # Updates between two validations, and between two checkpoints.
    # Weight of R-Drop, where it is worth its time: little text, in short sentences.
    r_drop: float = 0.0

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the values by section, as a configuration has them."""
        return {
            "tokenizer": {"vocab_size": self.vocab_size},
            "batch": {"max_tokens": self.max_tokens},
            "model": {"preset": self.preset, "dropout": self.dropout},
            "training": {
                "max_minutes": self.minutes,
                "r_drop": self.r_drop,
                **self.optimizer,
                "validate_every": self.validate_every,
                "save_every": self.validate_every,
            },
        }


_ADAMW = {"schedule": {"shape": "linear", "peak_lr": 7e-4, "warmup": 0.06}}
# From small to large.
SCALES = (
    Scale(1e6, "tiny", 0.3, 2000, 2048, 20, MUON, r_drop=3.0),
    Scale(6.5e6, "tiny", 0.1, 4000, 2048, 20, MUON),
    Scale(30e6, "tiny", 0.1, 8000, 4096, 45, MUON),
    Scale(float("inf"), "transformer-base", 0.1, 32_000, 16_384, 1440, _ADAMW, 1000),
)


def scale_of(num_characters: int) -> Scale:
    """Return what goes with a corpus of so many characters."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def with_scale(values: Mapping[str, Any], num_characters: int) -> dict[str, Any]:
    """Put the values that go with ``num_characters`` below those of a configuration."""
    sections = scale_of(num_characters).sections()
    if values.get("preset") is not None:  # which has a dropout of its own
        sections = filled_in(RUN_PRESETS.get(str(values["preset"]), {}), sections)
    return filled_in(values, sections)


def usual_vocab_size(num_pairs: int) -> int:
    """Return a vocabulary size that is usual for so many pairs: a rule of thumb.

    It grows with the power 0.4 of the corpus, from 2,000 at 5,000 pairs to the published 32,000 at
    4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    wanted = 2000 * (num_pairs / 5000) ** 0.4
    return min(_VOCAB_SIZES, key=lambda size: abs(size - wanted) / size)
