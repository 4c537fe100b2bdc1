"""Prefixes and phrases as text -> constraints on the token ids of segments."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, DataError
from nmt.search.hypothesis import NONE, Constraints, Hypothesis, contains
from nmt.text.tokenizer import Tokenizer
from nmt.translation.segment import Segment

_LETTER = "a"
# Names of characters of the scripts that have no spaces between words.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
Phrases = Sequence[Sequence[str]]
"""Of each line, any number of phrases."""


def encode_constraints(
    tokenizer: Tokenizer,
    num_lines: int,
    prefixes: Sequence[str] | None,
    required: Phrases | None,
    forbidden: Phrases | None,
) -> Iterator[Constraints]:
    """Yield the constraints of each line. Blank text is no constraint.

    Raises:
        DataError: There are more or fewer entries than lines.
    """
    for name, given in (("prefixes", prefixes), ("required", required), ("forbidden", forbidden)):
        if given is not None and len(given) != num_lines:
            raise DataError(
                f"{name} has {len(given):,} entries for {num_lines:,} lines.",
                fix="Give one entry a line, an empty one for no constraint.",
            )
    for line in range(num_lines):
        yield Constraints(
            prefix=tuple(tokenizer.encode(prefixes[line])) if prefixes else (),
            required=_phrases(tokenizer, required[line] if required else ()),
            forbidden=tuple(_forbidden(tokenizer, forbidden[line] if forbidden else ())),
        )


def _phrases(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    encoded = (tuple(tokenizer.encode(text)) for text in texts)
    return tuple(ids for ids in encoded if ids)


def _forbidden(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yield phrases as they follow a space, and those that need none as they follow a letter."""
    yield from _phrases(tokenizer, texts)
    before = tokenizer.encode(_LETTER)
    for text in texts:
        if text.strip() and not _begins_a_word(text[0]):
            both = tokenizer.encode(_LETTER + text)
            if both[: len(before)] == before and len(both) > len(before):
                yield tuple(both[len(before) :])


def _begins_a_word(character: str) -> bool:
    """Whether there is a space before it, if it is the first of a word.

    >>> _begins_a_word("H"), _begins_a_word("."), _begins_a_word("犬")
    (True, False, False)
    """
    is_of_word = unicodedata.category(character)[0] in "LMN"
    return is_of_word and not unicodedata.name(character, "").startswith(_UNSPACED)


def constrain(
    segments: Iterable[Segment],
    constraints: Iterable[Constraints],
    options: DecodingConfig,
    *,
    longest_output: int,
    first_line: int = 1,
) -> list[Segment]:
    """Give segments the constraints of their lines; prefix and required phrases to the first.

    Args:
        segments: Of all lines, in order.
        constraints: Of each line.
        options: Rules of the search, which constraints may contradict.
        longest_output: Most subwords of an output without constraints.
        first_line: The number of the first line in messages.

    Raises:
        DataError: The constraints of a line contradict each other or the search, or are too long.
    """
    by_line = list(constraints)
    constrained: list[Segment] = []
    for line, of_line in groupby(segments, key=lambda segment: segment.line):
        own = by_line[line]
        if problem := _contradiction(own, options):
            raise DataError(
                f"Line {line + first_line:,}: {problem}.", fix="Drop one of the constraints."
            )
        if own.num_tokens > longest_output:
            raise DataError(
                f"Line {line + first_line:,}: its prefix and required phrases have "
                f"{own.num_tokens:,} subwords, and a translation has at most {longest_output:,}.",
                fix="Require less, or cut the line into sentences.",
            )
        first, *others = of_line
        later = Constraints(forbidden=own.forbidden)
        constrained.append(replace(first, constraints=own))
        constrained += [replace(other, constraints=later) for other in others]
    return constrained


def _contradiction(own: Constraints, options: DecodingConfig) -> str | None:
    """Say why no output can follow the constraints, if that is plain from the phrases alone."""
    is_forced = not options.prefix_bias_beta
    if is_forced and any(contains(own.prefix, phrase) for phrase in own.forbidden):
        return "the prefix contains a forbidden phrase"
    return own.contradiction(options.no_repeat_ngram_size)


def check_outputs(
    segments: Iterable[Segment], outputs: Iterable[Sequence[Hypothesis]], first_line: int = 1
) -> None:
    """Check that the search found an output for every segment.

    Raises:
        DataError: No output follows the constraints of a line.
        CheckpointError: There is none, and no constraint is to blame.
    """
    for segment, own in zip(segments, outputs, strict=True):
        if own:
            continue
        if segment.constraints != NONE:
            raise DataError(
                f"Line {segment.line + first_line:,}: no output has its prefix and its required "
                "phrases and none of the forbidden ones.",
                fix="Drop some of the constraints, or the rule of repeated n-grams.",
            )
        raise CheckpointError(
            "The model's probabilities are not numbers: its weights are broken.",
            fix="Use another checkpoint, or train again.",
        )
