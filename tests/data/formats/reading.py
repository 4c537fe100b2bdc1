"""Reads a file in a test as a corpus is read."""

from __future__ import annotations

from pathlib import Path

from nmt.data.formats import FORMATS, layout_of
from nmt.data.formats.layout import Column, Wanted
from nmt.data.formats.pair import BadPair, Pair, ReadOptions, SentencePair


def read_pairs(
    path: Path,
    languages: tuple[str, str] | None = ("en", "de"),
    *,
    columns: tuple[Column, Column] | None = None,
    skips_bad_bytes: bool = False,
) -> list[Pair]:
    """Return everything that a file yields."""
    layout = layout_of(path, Wanted(languages, columns))
    options = ReadOptions("en", "de", "skip" if skips_bad_bytes else "error")
    reader = FORMATS[layout.format].open(path, layout, options)
    [pairs] = reader.columns
    return list(reader.parse(list(pairs), 1))


def texts_of(pairs: list[Pair]) -> list[tuple[str, str]]:
    """Return both texts of all pairs, none of which may be bad."""
    texts = []
    for pair in pairs:
        assert isinstance(pair, SentencePair), pair
        texts.append((pair.source, pair.target))
    return texts


def outcomes(pairs: list[Pair]) -> list[tuple[int, str]]:
    """Return the line of each pair, and its source or why it cannot be read."""
    return [
        (pair.line, pair.reason if isinstance(pair, BadPair) else pair.source) for pair in pairs
    ]
