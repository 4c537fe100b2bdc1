"""Text files, aligned line by line: the only format whose sides are in different files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nmt.data.formats.file_names import is_set
from nmt.data.formats.lines import TextFile
from nmt.data.formats.pair import BadPair, Pair, PairReader, ReadOptions, SentencePair
from nmt.registry import load_attribute


def open_sides(files: Sequence[Path], encoding: str | None, options: ReadOptions) -> PairReader:
    """Open aligned text files, or the sides of a set of WMT, to read their pairs.

    Args:
        files: The source and one or more references.
        encoding: Encoding of the files.
        options: How to read them.
    """
    if all(map(is_set, files)):
        open_set = load_attribute("nmt.data.formats.wmt:open_set")  # which loads lxml
        reader: PairReader = open_set(files, encoding, options)
        return reader
    texts = [TextFile(path, encoding, options) for path in files]
    lines = [text.raw_lines() for text in texts]
    return PairReader([text.name for text in texts], lines, partial(_aligned_pairs, texts))


def _aligned_pairs(files: Sequence[TextFile], *block: Any) -> Iterator[Pair]:
    """Yield the pairs of a block: the lines of each file, and the number of the first line."""
    *columns, first = block
    most = files[0].options.max_characters
    texts = [file.texts(lines, first) for file, lines in zip(files, columns, strict=True)]
    for number, sides in enumerate(zip(*texts, strict=True), first):
        bad_pairs = [side for side in sides if isinstance(side, BadPair)]
        if bad_pairs:
            yield bad_pairs[0]
        elif max(map(len, sides)) > most:
            yield BadPair("characters", number, str(max(sides, key=len)))
        else:
            source, target, *others = map(str, sides)
            yield SentencePair(source, target, number, tuple(others))
