"""A corpus section -> sentence pairs, one at a time, whatever the format.

Both sides of a pair always move together: a blank line, bad bytes or an over-long line on one
side makes the pair blank, bad or over-long, and never shifts the other side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from nmt.config.data import CorpusConfig
from nmt.data.demo import demo_pairs
from nmt.data.huggingface import huggingface_pairs
from nmt.errors import DataError
from nmt.text.lines import decode_line, open_binary, split_lines

_MOST_BYTES_PER_CHARACTER = 4


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    line: int
    """Line number in the corpus, from 1, for messages."""


class BadPair(NamedTuple):
    """A pair that cannot be read."""

    reason: Literal["bad utf-8", "too many characters"]
    line: int
    """Line number in the corpus, from 1."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How corpora are read."""

    source_language: str
    target_language: str
    on_bad_utf8: Literal["error", "skip"] = "error"
    max_characters: int = 10_000


def corpus_name(config: CorpusConfig) -> str:
    """Return the name of a corpus in reports: its own, or one made of its place."""
    place = config.source or config.tsv or config.jsonl or config.huggingface or config.sacrebleu
    return config.name or (f"demo-{config.demo}" if config.demo else str(place))


def corpus_files(config: CorpusConfig) -> tuple[Path, ...]:
    """Return the files that a corpus is read from; none for hubs and the demo."""
    paths = [config.source, config.target, config.tsv, config.jsonl]
    if config.huggingface is not None and Path(config.huggingface).is_file():
        paths.append(Path(config.huggingface))
    return tuple(path for path in paths if path is not None)


def read_corpus(config: CorpusConfig, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a corpus in order, unfiltered.

    Raises:
        DataError: A file is missing, damaged or not parallel, or the format is not as promised.
    """
    return islice(_all_pairs(config, options), config.max_pairs)


def _all_pairs(config: CorpusConfig, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    if config.source is not None and config.target is not None:
        return _aligned_pairs(config.source, config.target, options)
    if config.tsv is not None:
        return _tsv_pairs(config.tsv, config.columns, options)
    if config.jsonl is not None:
        return _jsonl_pairs(config.jsonl, options)
    languages = (options.source_language, options.target_language)
    if config.demo is not None:
        texts = demo_pairs(config.demo, *languages)
    elif config.huggingface is not None:
        texts = huggingface_pairs(config, *languages)
    else:
        texts = _sacrebleu_pairs(str(config.sacrebleu), *languages)
    return (SentencePair(*pair, line) for line, pair in enumerate(texts, start=1))


def _numbered_lines(
    path: Path, options: ReadOptions, stack: ExitStack
) -> Iterator[tuple[int, str | BadPair]]:
    max_bytes = options.max_characters * _MOST_BYTES_PER_CHARACTER
    stream = stack.enter_context(open_binary(path))
    for number, line in enumerate(split_lines(stream, str(path), max_bytes=max_bytes), start=1):
        if line is None:
            yield number, BadPair("too many characters", number)
            continue
        try:
            text = decode_line(line, str(path), number)
        except DataError:
            if options.on_bad_utf8 == "error":
                raise
            yield number, BadPair("bad utf-8", number)
            continue
        too_long = len(text) > options.max_characters
        yield number, BadPair("too many characters", number) if too_long else text


def _aligned_pairs(
    source: Path, target: Path, options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    with ExitStack() as stack:
        sources = _numbered_lines(source, options, stack)
        targets = _numbered_lines(target, options, stack)
        number = 0
        for left, right in zip_longest(sources, targets):
            if left is None or right is None:
                longer = targets if left is None else sources
                rest = 1 + sum(1 for _ in longer)
                counts = (number, number + rest) if left is None else (number + rest, number)
                raise DataError.not_parallel(str(source), str(target), counts)
            number += 1
            if isinstance(left[1], BadPair):
                yield left[1]
            elif isinstance(right[1], BadPair):
                yield right[1]
            else:
                yield SentencePair(left[1], right[1], number)
        if number == 0:
            raise DataError(f"{source} is empty.", fix="Name a file with one sentence a line.")


def _tsv_pairs(
    path: Path, columns: tuple[int, int], options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    number = 0
    with ExitStack() as stack:
        for number, line in _numbered_lines(path, options, stack):
            if isinstance(line, BadPair):
                yield line
                continue
            cells = line.split("\t")
            if max(columns) >= len(cells) and line.strip():
                raise DataError(
                    f"{path}, line {number:,}: {len(cells)} columns, but column {max(columns)} "
                    "(counted from 0) is wanted.",
                    fix="Set columns of the corpus, or repair the line.",
                )
            left, right = ("", "") if not line.strip() else (cells[i] for i in columns)
            yield SentencePair(left, right, number)
    if number == 0:
        raise DataError(f"{path} is empty.", fix="Name a file with one pair a line.")


def _jsonl_pairs(path: Path, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    number = 0
    with ExitStack() as stack:
        for number, line in _numbered_lines(path, options, stack):
            if isinstance(line, BadPair):
                yield line
                continue
            if not line.strip():
                continue
            try:
                translation = json.loads(line)["translation"]
                left, right = (
                    translation[language]
                    for language in (options.source_language, options.target_language)
                )
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f'{path}, line {number:,}: no {{"translation": '
                    f'{{"{options.source_language}": ..., "{options.target_language}": ...}}}}'
                    f" ({type(error).__name__}: {error}).",
                    fix="Write one JSON object with both languages on each line.",
                ) from error
            yield SentencePair(str(left), str(right), number)
    if number == 0:
        raise DataError(f"{path} is empty.", fix="Name a file with one JSON object a line.")


def _sacrebleu_pairs(name: str, source_language: str, target_language: str):  # type: ignore[no-untyped-def]
    import sacrebleu  # noqa: PLC0415

    pair = f"{source_language}-{target_language}"
    try:
        sources = sacrebleu.get_source_file(name, pair)
        targets = sacrebleu.get_reference_files(name, pair)[0]
    except (SystemExit, Exception) as error:
        raise DataError(
            f"sacrebleu has no test set {name} for {pair}, or cannot download it: {error}",
            fix="`sacrebleu --list` shows the test sets; the first use needs the internet.",
        ) from error
    yield from zip(_text_lines(sources), _text_lines(targets), strict=True)


def _text_lines(path: str) -> list[str]:
    return Path(path).read_bytes().decode("utf-8").split("\n")[:-1]
