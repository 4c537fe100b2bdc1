"""Chooses the characters of a vocabulary, so that each language of a training has its letters.

SentencePiece looks at the text as a whole. The letters of a small language beside a large one are
then too rare for the vocabulary, and its sentences are spelled in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SPACE = " "


@dataclass(frozen=True, slots=True)
class Coverage:
    """The characters of a vocabulary, and what it lacks."""

    characters: frozenset[str]  # characters that the vocabulary contains
    num_wanted: int  # number of characters with unlimited room
    # For each language that lacks wanted characters: their number, and their share of its text.
    lacking: Mapping[str, tuple[int, float]]


def cover(counts: Mapping[str, Counter[str]], share: float, room: int | None) -> Coverage:
    """Choose characters that make up a share of the text of each language.

    If there is not enough room, the characters with the largest share of the text of any language
    are chosen, so that a small language loses as little as a large one.

    Args:
        counts: How often each character occurs, by language.
        share: Share of the characters of each language's text to cover.
        room: Maximum number of characters; None for no limit.

    >>> counts = {"de": Counter("a" * 70 + "b" * 28 + "c" * 2), "el": Counter("\u03b1\u03b2")}
    >>> sorted(cover(counts, 0.98, None).characters)
    [' ', 'a', 'b', '\u03b1', '\u03b2']
    >>> sorted(cover(counts, 0.98, 3).characters)
    [' ', 'a', '\u03b1']
    """
    wanted = {language: _covering(count, share) for language, count in counts.items()}
    shares = {SPACE: 1.0}  # the largest share of each wanted character in any language
    for language, characters in wanted.items():
        total = counts[language].total()
        for character in characters:
            share_here = counts[language][character] / total
            shares[character] = max(share_here, shares.get(character, 0.0))
    # Of equal shares, the character with the lowest code point comes first.
    ranked = sorted(shares, key=lambda character: (-shares[character], character))
    chosen = frozenset(ranked[:room])
    lacking = dict[str, tuple[int, float]]()
    for language, characters in wanted.items():
        missing = [character for character in characters if character not in chosen]
        if missing:
            total = counts[language].total()
            occurrences = sum(counts[language][character] for character in missing)
            lacking[language] = len(missing), occurrences / total
    return Coverage(chosen, len(shares), lacking)


def _covering(counts: Counter[str], share: float) -> list[str]:
    """Return the most frequent characters that make up a share of a text."""
    wanted = share * counts.total()
    characters: list[str] = []
    covered = 0
    # Of equally frequent characters, the one with the lowest code point comes first.
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if covered >= wanted:
            break
        characters.append(character)
        covered += counts[character]
    return characters
