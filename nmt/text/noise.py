"""Functions that add the noise of real input to a text: typos, wrong case, missing punctuation.

Used by `nmt evaluate` (`robustness`) and during training (`data.train.*.noise`). Each function
takes a text and a random generator, which alone determine the returned text. To add a kind of
noise, write a function and add it to `NOISES`.

Source: Belinkov and Bisk (2018); Ribeiro et al. (2020), section 2.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from random import Random

Noise = Callable[[str, Random], str]

TYPO_RATE = 0.1  # Share of the words with three letters or more that get a typo.
SPACING_RATE = 0.1  # Share of the spaces between words that are doubled or removed.
_WORD = re.compile(r"\w{3,}")
_GAP = re.compile(r"(?<=\S) (?=\S)")


def typos(text: str, generator: Random, rate: float = TYPO_RATE) -> str:
    """Swap, drop or double one letter in a share ``rate`` of the words, never the first letter.

    >>> typos("several words of a line", Random(1), rate=1)
    'severral wods of a liine'
    """

    def with_typo(match: re.Match[str]) -> str:
        word = match[0]
        # Three draws with or without a typo, so that the typos of later words do not change.
        draw = generator.random()
        kind = int(generator.random() * 3)
        fraction = generator.random()
        if draw >= rate:
            return word
        index = 1 + int(fraction * (len(word) - 2))  # from the second letter to the last but one
        letter = word[index]
        next_letter = word[index + 1]
        # Replaces both letters: swapped, the first dropped, or the first doubled.
        changed = (next_letter + letter, next_letter, letter + letter + next_letter)[kind]
        return word[:index] + changed + word[index + 2 :]

    return _WORD.sub(with_typo, text)


def spacing(text: str, generator: Random, rate: float = SPACING_RATE) -> str:
    """Double or drop a share ``rate`` of the spaces between words.

    >>> spacing("a b c d", Random(3), rate=1)
    'abc  d'
    """

    def changed_space(_: re.Match[str]) -> str:
        # Two draws with or without a change, so that later spaces do not depend on it.
        draw = generator.random()
        is_doubled = generator.random() < 0.5
        if draw >= rate:
            return " "
        return "  " if is_doubled else ""

    return _GAP.sub(changed_space, text)


def upper_case(text: str, _: Random) -> str:
    """Convert the text to upper case."""
    return text.upper()


def lower_case(text: str, _: Random) -> str:
    """Convert the text to lower case."""
    return text.lower()


def title_case(text: str, _: Random) -> str:
    """Capitalize the first letter of every word and keep all other letters.

    >>> title_case("it's a dog", Random(0))
    "It's A Dog"
    """
    words = text.split(" ")
    return " ".join(word[:1].upper() + word[1:] for word in words)


def without_punctuation(text: str, _: Random) -> str:
    """Remove punctuation and closing quotation marks at the end of the text.

    >>> without_punctuation('He said: "no!"', Random(0))
    'He said: "no'
    """
    end = len(text)
    # The Unicode categories of punctuation begin with P; quotation marks are punctuation, too.
    while end and (text[end - 1].isspace() or unicodedata.category(text[end - 1])[0] == "P"):
        end -= 1
    return text[:end] or text  # a text of punctuation only stays as it is


def decomposed(text: str, _: Random) -> str:
    """Decompose letters with accents into several characters (Unicode NFD).

    >>> len(decomposed("ä", Random(0)))
    2
    """
    return unicodedata.normalize("NFD", text)


# By the names that are used in options, configurations and reports.
NOISES: dict[str, Noise] = {
    "typos": typos,
    "upper-case": upper_case,
    "lower-case": lower_case,
    "title-case": title_case,
    "no-final-punctuation": without_punctuation,
    "spacing": spacing,
    "unicode-nfd": decomposed,
}
