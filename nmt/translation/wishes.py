"""Prefixes and phrases as text -> constraints on token ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from nmt.errors import DataError
from nmt.search.constraints import Constraints
from nmt.text.tokenizer import Tokenizer

_LETTER = "a"
# Names of characters of the scripts that have no spaces between words.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
Phrases = Sequence[Sequence[str]]
"""Of each line, any number of phrases."""


def encode_wishes(
    tokenizer: Tokenizer,
    num_lines: int,
    prefixes: Sequence[str] | None,
    required: Phrases | None,
    forbidden: Phrases | None,
) -> Iterator[Constraints]:
    """Yield the constraints of each line. What is blank is no wish.

    Raises:
        DataError: There are more or fewer wishes than lines.
    """
    for name, given in (("prefixes", prefixes), ("required", required), ("forbidden", forbidden)):
        if given is not None and len(given) != num_lines:
            raise DataError(
                f"{name} has {len(given):,} entries for {num_lines:,} lines.",
                fix="Give one entry a line, an empty one where there is no wish.",
            )
    for line in range(num_lines):
        yield Constraints(
            prefix=tuple(tokenizer.encode(prefixes[line])) if prefixes else (),
            required=_phrases(tokenizer, required[line] if required else ()),
            forbidden=tuple(_forbidden(tokenizer, forbidden[line] if forbidden else ())),
        )


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


def _phrases(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    encoded = (tuple(tokenizer.encode(text)) for text in texts)
    return tuple(ids for ids in encoded if ids)
