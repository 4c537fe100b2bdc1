"""Sentence pairs, and how they are read.

Both sides of a pair always move together: a blank line, bad bytes or an over-long line on one
side makes the pair blank, bad or over-long, and never shifts the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nmt.text import without_surrogates


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    line: int  # number in the corpus, from 1


class BadPair(NamedTuple):
    """A pair that cannot be read."""

    reason: Literal["bad_utf8", "characters"]
    line: int  # number in the corpus, from 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How corpora are read."""

    source_language: str
    target_language: str
    on_bad_utf8: Literal["error", "skip"] = "error"
    max_characters: int = 10_000


def pair_of(source: str, target: str, line: int, options: ReadOptions) -> SentencePair | BadPair:
    """Check texts that did not come as lines: they may hold line feeds and lone surrogates."""
    if max(len(source), len(target)) > options.max_characters:
        return BadPair("characters", line)
    return SentencePair(_one_line(source), _one_line(target), line)


def _one_line(text: str) -> str:
    if text.isascii():
        return text.replace("\n", " ") if "\n" in text else text
    return without_surrogates(text).replace("\n", " ")


def in_languages(texts: Mapping[str, Any], languages: tuple[str, str]) -> tuple[Any, Any]:
    """Return both texts; data may have ``pt_BR`` where we say ``pt-BR``."""
    source, target = (
        texts[language if language in texts else language.replace("-", "_")]
        for language in languages
    )
    return source, target
