"""A corpus section -> sentence pairs, one at a time, whatever the format.

Both sides of a pair always move together: a blank line, bad bytes or an over-long line on one
side makes the pair blank, bad or over-long, and never shifts the other side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nmt.config.data import CorpusConfig
from nmt.data.hub import huggingface_pairs, local_files, published_pairs, text_in
from nmt.errors import DataError
from nmt.files.lines import decode_line, open_binary, split_lines

_MOST_BYTES_PER_CHARACTER = 4
# A line of TSV or JSON holds both sides, other fields, and characters spelt \uXXXX.
_LINE_PER_SIDE = 8


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


def corpus_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    """Return a name for each corpus in reports: its own or that of its place, made unique."""
    names = ["valid"]  # the validation set stands beside them
    for corpus in corpora:
        place = corpus.source or corpus.tsv or corpus.jsonl or corpus.huggingface
        demo = f"demo-{corpus.demo}" if corpus.demo else corpus.sacrebleu
        name = corpus.name or str(place or demo)
        others = (f"{name} ({number})" for number in count(len(names)))
        names.append(next(each for each in chain([name], others) if each not in names))
    return names[1:]


def corpus_files(config: CorpusConfig) -> tuple[Path, ...]:
    """Return the files that a corpus is read from; none for hubs and the demo."""
    paths = [config.source, config.target, config.tsv, config.jsonl]
    if config.huggingface is not None:
        paths += local_files(config.huggingface)
    return tuple(path for path in paths if path is not None)


def check_files(corpora: Mapping[str, CorpusConfig]) -> None:
    """Check that the files of corpora exist, before any is read.

    Args:
        corpora: Corpora by their keys in the configuration, for example ``data.train.0``.

    Raises:
        DataError: Names every file that does not, with its key.
    """
    missing = [
        f"{key}.{side}: {path} does not exist."
        for key, corpus in corpora.items()
        for side in ("source", "target", "tsv", "jsonl")
        if (path := getattr(corpus, side)) is not None and _is_missing(path)
    ]
    if missing:
        raise DataError(
            "\n  ".join(missing),
            fix="Check the path; relative paths start at the working directory.",
        )


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # reading it says what is wrong
        return False
    return False


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
        from nmt.data.demo import demo_pairs  # noqa: PLC0415 - reads its words

        texts = demo_pairs(config.demo, *languages)
    elif config.huggingface is not None:
        texts = huggingface_pairs(config, *languages)
    else:
        texts = published_pairs(str(config.sacrebleu), *languages)
    return (_pair(*pair, line, options) for line, pair in enumerate(texts, start=1))


def _pair(source: str, target: str, line: int, options: ReadOptions) -> SentencePair | BadPair:
    """Check texts that did not come as lines: they may hold line feeds and lone surrogates."""
    if max(len(source), len(target)) > options.max_characters:
        return BadPair("too many characters", line)
    return SentencePair(_one_line(source), _one_line(target), line)


def _one_line(text: str) -> str:
    if text.isascii():
        return text.replace("\n", " ") if "\n" in text else text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\n", " ")


def _numbered_lines(
    path: Path, options: ReadOptions, max_characters: int, stack: ExitStack
) -> Iterator[tuple[int, str | BadPair]]:
    max_bytes = max_characters * _MOST_BYTES_PER_CHARACTER
    stream = stack.enter_context(open_binary(path))
    name = str(path)
    for number, line in enumerate(split_lines(stream, name, max_bytes=max_bytes), start=1):
        if line is None:
            yield number, BadPair("too many characters", number)
            continue
        try:
            text = decode_line(line, name, number)
        except DataError:
            if options.on_bad_utf8 == "error":
                raise
            yield number, BadPair("bad utf-8", number)
            continue
        too_long = len(text) > max_characters
        yield number, BadPair("too many characters", number) if too_long else text


def _aligned_pairs(
    source: Path, target: Path, options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    with ExitStack() as stack:
        sources = _numbered_lines(source, options, options.max_characters, stack)
        targets = _numbered_lines(target, options, options.max_characters, stack)
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
            raise DataError(
                f"{source} and {target} are empty.", fix="Name files with one sentence a line."
            )


def _records(path: Path, options: ReadOptions) -> Iterator[tuple[int, str | BadPair]]:
    """Yield the lines of a file that holds both sides on each."""
    number = 0
    with ExitStack() as stack:
        most = options.max_characters * _LINE_PER_SIDE
        for number, line in _numbered_lines(path, options, most, stack):
            yield number, line
    if number == 0:
        raise DataError(f"{path} is empty.", fix="Name a file with one pair a line.")


def _tsv_pairs(
    path: Path, columns: tuple[int, int], options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    for number, line in _records(path, options):
        if isinstance(line, BadPair):
            yield line
            continue
        cells = line.split("\t")
        if max(columns) < len(cells):
            yield _pair(cells[columns[0]], cells[columns[1]], number, options)
        elif line.strip():
            raise DataError(
                f"{path}, line {number:,}: {len(cells)} columns, but column {max(columns)} "
                "(counted from 0) is wanted.",
                fix="Set columns of the corpus, or repair the line.",
            )
        else:
            yield SentencePair("", "", number)


def _jsonl_pairs(path: Path, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    for number, line in _records(path, options):
        if isinstance(line, BadPair):
            yield line
            continue
        if not line.strip():
            yield SentencePair("", "", number)
            continue
        try:
            translation = json.loads(line)["translation"]
            left = _json_text(text_in(options.source_language, translation))
            right = _json_text(text_in(options.target_language, translation))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f'{path}, line {number:,}: no {{"translation": '
                f'{{"{options.source_language}": ..., "{options.target_language}": ...}}}}'
                f" ({type(error).__name__}: {error}).",
                fix="Write one JSON object with both languages on each line.",
            ) from error
        yield _pair(left, right, number, options)


def _json_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r:.40} is not text")
