"""Search for translations: algorithm, limits and penalties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from nmt.config.section import Registered, Section

_SEARCHES = (
    "auto", "greedy", "beam", "diverse", "sampling", "alternatives", "constrained",
)  # fmt: skip
_OF_SAMPLING = ("temperature", "top_k", "top_p", "epsilon_cutoff")
_OF_BEAMS = ("patience", "diverse_beam_groups", "coverage_penalty")
_OF_RESULTS = ("n_best", "search", "sampling", "return_alternatives")


class DecodingConfig(Section):
    """Beam search or sampling: limits, penalties and constraints."""

    search: Annotated[str, Registered("search", _SEARCHES)] = "auto"
    """``auto`` follows the other options; otherwise the name of a search algorithm."""
    beam_size: int = Field(default=5, ge=1, le=256)
    """Hypotheses kept per sentence; 1 is greedy search."""
    n_best: int = Field(default=1, ge=1)
    """Translations returned per sentence; at most ``beam_size`` in beam search."""
    length_penalty: float = Field(default=1.0, ge=0, le=20)
    """Exponent of the length normalisation; 0 compares plain log probabilities."""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """``power``: length^a. ``gnmt``: ((5 + length) / 6)^a (Wu et al. 2016, section 7)."""
    coverage_penalty: float = Field(default=0.0, ge=0, le=1000)
    """Weight of the penalty for source tokens with little attention (Wu et al. 2016); 0: off."""
    patience: float = Field(default=1.0, gt=0)
    """Search ends with ``patience`` x ``beam_size`` finished hypotheses (Kasai et al. 2022)."""
    diverse_beam_groups: int = Field(default=1, ge=1)
    """Groups of beams that avoid each other's tokens; divides ``beam_size``."""
    diverse_beam_strength: float = Field(default=0.5, ge=0, le=1000)
    """Subtracted from a token's log probability for each beam of an earlier group that chose it."""
    sampling: bool = False
    """Sample instead of searching. A line gets the same samples in any batch and order."""
    temperature: float = Field(default=1.0, ge=1e-4)
    """Softmax temperature of sampling; below 1 sharpens the distribution."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k most probable tokens only (Fan et al. 2018); 0 for all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability (Holtzman et al. 2020)."""
    epsilon_cutoff: float = Field(default=0.0, ge=0, lt=1)
    """Sample from tokens of at least this probability only (Hewitt et al. 2022)."""
    seed: int = Field(default=1, ge=0)
    """Random seed of sampling."""
    return_alternatives: bool = False
    """Return the ``n_best`` most probable next tokens after the prefix, each completed greedily."""
    prefix_bias_beta: float = Field(default=0.0, ge=0, lt=1)
    """0 forces a prefix; above 0 its tokens get this share while the hypothesis agrees with it."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """No n tokens in a row occur twice in an output (Paulus et al. 2018); 0 allows it."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Factor on the log probability of tokens already in the output (Keskar et al. 2019)."""
    keep_special_mass: bool = False
    """Keep PAD, UNK and BOS in the softmax, as Marian and Hugging Face do; none is ever picked."""
    shortlist: bool = False
    """Score only what the source words are likely to become: faster; a few translations differ."""
    max_length_factor: float = Field(default=2.0, ge=0)
    """Longest output: factor x source tokens + offset."""
    max_length_offset: int = Field(default=20, ge=1)
    """See ``max_length_factor``."""
    min_length_factor: float = Field(default=0.0, ge=0)
    """Shortest output, as a factor of the source tokens."""
    batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Padded source tokens searched at once; ``auto``: 2048 on a CPU, what fits on a GPU."""

    @property
    def num_hypotheses(self) -> int:
        """How many hypotheses of a sentence are worked on at once."""
        single = self.sampling or self.return_alternatives
        return self.n_best if single else self.beam_size

    def plain(self, beam_size: int) -> Self:
        """Return the same limits and rules for plain beam search of the one best."""
        kept = self.model_dump(exclude={*_OF_SAMPLING, *_OF_BEAMS, *_OF_RESULTS})
        return type(self)(**{**kept, "beam_size": beam_size})

    def _disagreements(self) -> Iterator[str]:
        way = "sampling" if self.sampling else "return_alternatives"
        for key in (*_OF_SAMPLING, *_OF_BEAMS):
            if (value := getattr(self, key)) == type(self).model_fields[key].default:
                continue
            if key in _OF_SAMPLING and not self.sampling:
                yield (f"{key} ({value}) is an option of sampling: set sampling to true")
            elif key in _OF_BEAMS and self.sampling != self.return_alternatives:
                yield f"{key} ({value}) is an option of beam search, not of {way}"
        if self.sampling and self.return_alternatives:
            yield "sampling and return_alternatives exclude each other"
        elif self.return_alternatives and self.prefix_bias_beta:
            yield "return_alternatives needs a forced prefix: set prefix_bias_beta to 0"
        if self.sampling or self.return_alternatives:
            return
        best, beam, groups = self.n_best, self.beam_size, self.diverse_beam_groups
        if best > beam:
            yield f"n_best ({best}) is more than beam_size ({beam}): raise `beam_size`"
        elif best > self.patience * beam:
            yield f"n_best ({best}) is more than patience x beam_size ({self.patience * beam:g})"
        if beam % groups:
            yield f"diverse_beam_groups ({groups}) does not divide beam_size ({beam})"
