"""How translations are searched for."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from nmt.config.base import Section


class DecodingConfig(Section):
    """Beam search and its limits."""

    beam_size: int = Field(default=5, ge=1, le=256)
    """Hypotheses kept per sentence; 1 is greedy search."""
    n_best: int = Field(default=1, ge=1)
    """Translations returned per sentence; at most ``beam_size``."""
    length_penalty: float = Field(default=1.0, ge=0)
    """Exponent of the length normalisation; 0 compares plain log probabilities."""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """``power``: length^a. ``gnmt``: ((5 + length) / 6)^a (Wu et al. 2016, section 7)."""
    max_length_factor: float = Field(default=2.0, ge=0)
    """Longest output: factor x source tokens + offset."""
    max_length_offset: int = Field(default=20, ge=1)
    """See ``max_length_factor``."""
    min_length_factor: float = Field(default=0.0, ge=0)
    """Shortest output, as a factor of the source tokens."""
    batch_tokens: int = Field(default=2048, ge=1)
    """Source tokens, padded, searched at once; fewer with a beam too wide for the memory."""

    @model_validator(mode="after")
    def _n_best_within_beam(self) -> Self:
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best ({self.n_best}) is more than beam_size ({self.beam_size})")
        return self
