"""Sentence pairs as the formats yield them, and how to read them in blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nmt.text import without_surrogates

_EXCERPT = 80  # characters
# Why a pair could not be read. `filters.on_bad_utf8` decides about the first reason, and
# `filters.on_bad_row` about the last four. What is untranslated has no translation, or one that
# its file marks as unfinished or obsolete.
BadReason = Literal[
    "bad_utf8", "characters", "untranslated", "nul", "columns", "syntax", "language_code"
]


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    line: int  # number in its file, from 1
    other_targets: tuple[str, ...] = ()  # further references, in a validation or test set
    file: str = ""  # if the corpus has several


class BadPair(NamedTuple):
    """A pair that cannot be read."""

    reason: BadReason
    line: int  # number in its file, from 1
    text: str = ""  # if it can be shown
    file: str = ""  # if the corpus has several

    @property
    def excerpt(self) -> str:
        """The beginning of the text."""
        return self.text[:_EXCERPT]


Pair = SentencePair | BadPair


def place_of(pair: Pair, corpus: str = "") -> str:
    """Return the file of a pair, or the corpus if it has only one, and the line."""
    file = pair.file or corpus
    line = f"line {pair.line:,}"
    return f"{file}, {line}" if file else line


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for reading a corpus."""

    source_language: str
    target_language: str
    on_bad_utf8: Literal["error", "skip"] = "error"
    max_characters: int = 10_000
    skip_advice: str = "set filters.on_bad_utf8: skip"  # how to leave out pairs with bad bytes


def as_read(pairs: Sequence[Pair], _: int) -> Sequence[Pair]:
    """Return pairs that were read as pairs."""
    return pairs


@dataclass(frozen=True)
class PairReader:
    """The pairs of a corpus that is open, to be read in blocks.

    Args:
        names: Names of the files in messages.
        columns: Iterators over raw data, with one item per pair in each: the lines of both files,
            the lines of one file, or pairs.
        parse: Returns the pairs of a block. Called in any process, with the items of the block from
            each column, and the line number of the first pair. By default, they are pairs.
    """

    names: Sequence[str]
    columns: Sequence[Iterator[Any]]
    parse: Callable[..., Iterable[Pair]] = as_read


def pair_of(source: str, target: str, line: int, options: ReadOptions) -> Pair:
    """Make a pair of texts that may contain line feeds, lone surrogates and NUL characters."""
    if max(len(source), len(target)) > options.max_characters:
        return BadPair("characters", line, source)
    if "\0" in source or "\0" in target:
        return BadPair("nul", line, f"{source}\t{target}")
    return SentencePair(one_line(source), one_line(target), line)


# The target language of a line, in front of the source.
_TAG = re.compile(r">>[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*<<")


def tagged(source: str, codes: Iterable[str]) -> str:
    """Return a source with the tags of languages, usually none or one, in front of it."""
    for code in codes:
        source = f">>{code.strip()}<< {source}"
    return source


def leading_tag(source: str) -> str:
    """Return the tag of a language with which a source begins; empty without one.

    >>> leading_tag(">>fra<< Hello"), leading_tag("Hello")
    ('>>fra<<', '')
    """
    match = _TAG.match(source)
    return match[0] if match else ""


def one_line(text: str) -> str:
    """Replace line feeds by spaces, and lone surrogates by U+FFFD."""
    if not text.isascii():
        text = without_surrogates(text)
    return text.replace("\n", " ")
