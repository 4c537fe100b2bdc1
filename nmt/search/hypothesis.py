"""Hypotheses, constraints on them, length limits and length penalty. Does not import torch.

The length of a hypothesis is its number of tokens, EOS included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from nmt.config.model import DecodingConfig
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

Ids = tuple[int, ...]
Phrases = tuple[Ids, ...]
IdLists = Sequence[Sequence[int]]  # Ids of each sentence.
# Takes a length from 1; returns the divisor of the log probability, which never decreases.
LengthPenalty = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a sentence, as token ids."""

    ids: Ids  # Target ids without BOS, start token and EOS.
    log_prob: float  # Natural-log probability of the ids and of EOS.
    # ``log_prob`` after length normalisation, minus the coverage penalty and the cost of required
    # phrases after the end, if any. Higher is better.
    score: float


NBestLists = list[list[Hypothesis]]  # Hypotheses of each sentence, or of each group of beams.


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints on the output of one sentence, as target ids.

    Phrases are compared by ids: the same text in other subwords is a different phrase.

    Raises:
        ValueError: A phrase is empty, or contains PAD, BOS or EOS.
    """

    # The output begins with these ids. With ``prefix_bias_beta`` they are only more probable. Other
    # rules do not apply to a forced prefix.
    prefix: Ids = ()
    # Phrases that the output must contain, in any order. They may overlap or be in the prefix.
    required: Phrases = ()
    # Phrases that the output must not contain, except in a forced prefix.
    forbidden: Phrases = ()
    # Token that the decoder reads after BOS, such as the tag of the target language. It counts in
    # the length, its log probability is 0, and hypotheses do not contain it. Either all sentences
    # of a batch have a start token, or none has one.
    start: int | None = None
    # The prefix, and others in which a subword completes its last word. The search does not use
    # them: `Translator` chooses ``prefix``.
    completions: Phrases = ()

    def __post_init__(self) -> None:
        phrases = (*self.required, *self.forbidden)
        if not all(phrases):
            raise ValueError("a phrase has no tokens")
        if {PAD_ID, BOS_ID, EOS_ID} & set(chain(self.prefix, *phrases)):
            raise ValueError("a prefix or phrase must not contain PAD, BOS or EOS")

    @property
    def first_ids(self) -> Ids:
        """The start token, if any, and the prefix."""
        return self.prefix if self.start is None else (self.start, *self.prefix)

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens that start token, prefix and required phrases need."""
        return len(self.first_ids) + sum(map(len, self.required))

    def contradiction(self, no_repeat_ngram_size: int = 0) -> str | None:
        """Return why no output can meet the constraints; None if there is no obvious reason.

        >>> Constraints(required=((5, 6, 7),), forbidden=((6, 7),)).contradiction()
        'a required phrase contains a forbidden phrase'
        """
        size = no_repeat_ngram_size  # 0 allows repeated n-grams
        for phrase in self.required:
            if UNK_ID in phrase:
                return "a required phrase has characters that the model cannot write"
            if any(contains(phrase, banned) for banned in self.forbidden):
                return "a required phrase contains a forbidden phrase"
            starts = range(len(phrase) - size + 1)
            unique_ngrams = {phrase[start : start + size] for start in starts}
            if size and len(unique_ngrams) < len(starts):
                return f"a required phrase repeats {size} tokens (see no_repeat_ngram_size)"
        return None


NONE = Constraints()


def contains(ids: Ids, phrase: Ids) -> bool:
    """Whether ``phrase`` is a contiguous part of ``ids``.

    >>> contains((4, 5, 6), (5, 6)), contains((4, 5, 6), (4, 6))
    (True, False)
    """
    size = len(phrase)
    starts = range(len(ids) - size + 1)
    return any(ids[start : start + size] == phrase for start in starts)


class Limits(NamedTuple):
    """Minimum and maximum length of an output in tokens, EOS included."""

    shortest: int
    longest: int


def limits_of(num_tokens: int, config: DecodingConfig, max_positions: int | None = None) -> Limits:
    """Return the limits of the output length. The minimum is never above the maximum.

    Args:
        num_tokens: Number of source tokens, without EOS.
        config: The decoding section.
        max_positions: Maximum output length of the model; None if there is no limit.

    >>> limits_of(10, DecodingConfig(max_length_factor=1.5, max_length_offset=2))
    Limits(shortest=1, longest=18)
    >>> limits_of(10, DecodingConfig(min_length_factor=1), max_positions=8)
    Limits(shortest=8, longest=8)
    """
    longest = int(num_tokens * config.max_length_factor) + config.max_length_offset
    longest = max(1, longest) + 1  # at least one token, and EOS
    if max_positions is not None:
        longest = min(longest, max_positions)
    shortest = int(num_tokens * config.min_length_factor) + 1  # and EOS
    return Limits(min(shortest, longest), longest)


def length_penalty(config: DecodingConfig) -> LengthPenalty:
    """Return the length penalty of the decoding section.

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
    """Return how many finished hypotheses stop a search: patience x beam size, rounded up.

    A beam of one is greedy search, which stops after its only hypothesis.

    Source: Kasai et al. (2022), section 3.

    >>> max_finished(DecodingConfig(patience=0.28), 25)
    7
    """
    if beam_size == 1:
        return 1
    # Without `round`, 0.28 * 25 is 7.000000000000001, which would become 8.
    return max(1, math.ceil(round(config.patience * beam_size, 6)))
