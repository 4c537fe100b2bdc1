"""Two text files, aligned line by line: the only format whose sides are in different files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from nmt.data.formats.lines import decoded_lines, raw_lines
from nmt.data.formats.pair import BadPair, Pair, PairReader, ReadOptions, SentencePair
from nmt.data.formats.wmt import is_set, open_set


def open_sides(
    source: Path, target: Path, encoding: str | None, options: ReadOptions
) -> PairReader:
    """Open two aligned text files, or both sides of a set of WMT, to read their pairs."""
    if is_set(source) and is_set(target):
        return open_set(source, target, encoding, options)
    names = [str(source), str(target)]
    most = options.max_characters
    lines = [raw_lines(path, encoding, most) for path in (source, target)]
    return PairReader(names, lines, partial(_aligned_pairs, names, encoding, options))


def _aligned_pairs(
    names: Sequence[str],
    encoding: str | None,
    options: ReadOptions,
    sources: Sequence[bytes | None],
    targets: Sequence[bytes | None],
    first: int,
) -> Iterator[Pair]:
    """Yield the pairs of a block of two aligned files."""
    most = options.max_characters
    source_texts = decoded_lines(sources, names[0], first, options, most, encoding)
    target_texts = decoded_lines(targets, names[1], first, options, most, encoding)
    texts = zip(source_texts, target_texts, strict=True)
    for number, (source, target) in enumerate(texts, first):
        if isinstance(source, BadPair):
            yield source
        elif isinstance(target, BadPair):
            yield target
        else:
            yield SentencePair(source, target, number)
