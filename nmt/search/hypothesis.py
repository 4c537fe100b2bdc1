"""A translation: what it must look like, how long it may be, and how it is scored.

A length counts the tokens of a hypothesis with its EOS. Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nmt.config.model import DecodingConfig
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

Ids = tuple[int, ...]
# Length, from 1 -> divisor of the log probability. Never falls with the length.
LengthPenalty = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a sentence, as token ids."""

    ids: Ids  # Target ids without BOS and EOS.
    log_prob: float  # Natural-log probability of the ids and of EOS.
    # ``log_prob`` after length normalisation, and after the coverage penalty if there is one and
    # the cost of required phrases past the end; higher is better.
    score: float


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the output of one sentence is like, as target ids. Phrases have one token or more.

    A rule about ids is not quite one about text: a phrase may be written in other subwords.
    """

    # What the output begins with, or with ``prefix_bias_beta`` is drawn to. Any ids but PAD, BOS
    # and EOS; no other rule holds for a forced prefix.
    prefix: Ids = ()
    # Phrases that the output contains, in any order; they may overlap, and the prefix counts.
    required: tuple[Ids, ...] = ()
    # Phrases that the output does not contain, unless in a forced prefix.
    forbidden: tuple[Ids, ...] = ()

    def __post_init__(self) -> None:
        phrases = (*self.required, *self.forbidden)
        if not all(phrases):
            raise ValueError("a phrase has no tokens")
        if {PAD_ID, BOS_ID, EOS_ID} & {token for ids in (self.prefix, *phrases) for token in ids}:
            raise ValueError("PAD, BOS and EOS are no part of an output")

    @property
    def num_tokens(self) -> int:
        """Tokens that an output needs for its prefix and required phrases, at most."""
        return len(self.prefix) + sum(map(len, self.required))

    def contradiction(self, no_repeat_ngram_size: int = 0) -> str | None:
        """Say why no output can meet them, if that is plain from the phrases alone.

        >>> Constraints(required=((5, 6, 7),), forbidden=((6, 7),)).contradiction()
        'a required phrase contains a forbidden one'
        """
        for phrase in self.required:
            if UNK_ID in phrase:
                return "a required phrase has characters that the model cannot write"
            if any(contains(phrase, banned) for banned in self.forbidden):
                return "a required phrase contains a forbidden one"
            size = no_repeat_ngram_size
            ngrams = [phrase[i : i + size] for i in range(len(phrase) - size + 1)]
            if size and len(set(ngrams)) < len(ngrams):
                return f"a required phrase repeats {size} tokens, against no_repeat_ngram_size"
        return None


NONE = Constraints()


def contains(ids: Ids, phrase: Ids) -> bool:
    """Whether ``phrase`` stands somewhere in ``ids``.

    >>> contains((4, 5, 6), (5, 6)), contains((4, 5, 6), (4, 6))
    (True, False)
    """
    return any(ids[i : i + len(phrase)] == phrase for i in range(len(ids) - len(phrase) + 1))


class Limits(NamedTuple):
    """Shortest and longest length of an output."""

    shortest: int
    longest: int


def limits_of(num_tokens: int, config: DecodingConfig, max_positions: int | None = None) -> Limits:
    """Return the limits of the output for so many source tokens, without their EOS.

    At least EOS may come, and the lower limit is never above the upper one.

    Args:
        num_tokens: Source tokens.
        config: The decoding section.
        max_positions: Longest output that the model can produce; None if there is no limit.

    >>> limits_of(10, DecodingConfig(max_length_factor=1.5, max_length_offset=2))
    Limits(shortest=1, longest=18)
    >>> limits_of(10, DecodingConfig(min_length_factor=1), max_positions=8)
    Limits(shortest=8, longest=8)
    """
    longest = max(1, int(num_tokens * config.max_length_factor) + config.max_length_offset) + 1
    if max_positions is not None:
        longest = min(longest, max_positions)
    return Limits(min(int(num_tokens * config.min_length_factor) + 1, longest), longest)


def length_penalty(config: DecodingConfig) -> LengthPenalty:
    """Return the configured penalty.

    >>> length_penalty(DecodingConfig(length_penalty=1.0))(7)
    7.0
    >>> length_penalty(DecodingConfig(length_penalty=1.0, length_penalty_form="gnmt"))(7)
    2.0
    """
    exponent = config.length_penalty
    if config.length_penalty_form == "gnmt":  # Wu et al. (2016), section 7
        return lambda length: float(((5 + length) / 6) ** exponent)
    return lambda length: float(length**exponent)


def max_finished(config: DecodingConfig, beam_size: int) -> int:
    """Return how many finished hypotheses end a search: patience x beam size, rounded up.

    Source: Kasai et al. (2022), section 3.

    >>> max_finished(DecodingConfig(patience=0.28), 25)
    7
    """
    return max(1, math.ceil(round(config.patience * beam_size, 6)))  # 0.28 * 25 is above 7
