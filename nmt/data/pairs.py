"""Readers of sentence pairs: text files, TSV, CSV, JSON lines, hubs, and the demo corpus.

Both sides stay aligned: a line that is blank, too long or not UTF-8 affects only the pair of this
line, and never shifts the other side. `columns_of` chooses the reader of a corpus.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nmt.config.data import CorpusConfig
from nmt.config.language_codes import matching
from nmt.data.demo import demo_pairs
from nmt.data.hubs import huggingface_pairs, in_languages, published_test_set
from nmt.errors import DataError
from nmt.files.lines import STANDARD_INPUT, decode_line, open_binary, split_lines
from nmt.text import without_surrogates

SPOOL = ".standard-input.tsv"  # Name of a copy of standard input.
_MOST_CHARACTER_BYTES = 4
# A line of TSV or JSON contains both sides, other fields, and escapes such as \uXXXX.
_LINE_PER_SIDE = 8


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    line: int  # number in the corpus, from 1


class BadPair(NamedTuple):
    """A pair that is not UTF-8 or has too many characters."""

    reason: Literal["bad_utf8", "characters"]
    line: int  # number in the corpus, from 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for reading a corpus."""

    source_language: str
    target_language: str
    on_bad_utf8: Literal["error", "skip"] = "error"
    max_characters: int = 10_000


def _pair_of(source: str, target: str, line: int, options: ReadOptions) -> SentencePair | BadPair:
    """Make a pair of texts that may contain line feeds and lone surrogates."""
    if max(len(source), len(target)) > options.max_characters:
        return BadPair("characters", line)
    return SentencePair(_one_line(source), _one_line(target), line)


def _one_line(text: str) -> str:
    return (text if text.isascii() else without_surrogates(text)).replace("\n", " ")


def _raw_lines(path: Path, max_characters: int) -> Iterator[bytes | None]:
    """Yield the lines of a file; None for a line with too many bytes."""
    with open_binary(path) as stream:
        yield from split_lines(stream, str(path), max_bytes=max_characters * _MOST_CHARACTER_BYTES)


def _decoded(
    lines: Iterable[bytes | None], name: str, first: int, options: ReadOptions, max_characters: int
) -> Iterator[str | BadPair]:
    for number, line in enumerate(lines, first):
        try:
            text = None if line is None else decode_line(line, name, number)
        except DataError:
            if options.on_bad_utf8 == "error":
                raise
            yield BadPair("bad_utf8", number)
            continue
        if text is None or len(text) > max_characters:
            yield BadPair("characters", number)
        else:
            yield text


def _aligned_pairs(
    names: Sequence[str],
    options: ReadOptions,
    sources: Sequence[bytes | None],
    targets: Sequence[bytes | None],
    first: int,
) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of two aligned files."""
    lefts, rights = (
        _decoded(lines, name, first, options, options.max_characters)
        for lines, name in zip((sources, targets), names, strict=True)
    )
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True), first):
        if isinstance(left, BadPair):
            yield left
        elif isinstance(right, BadPair):
            yield right
        else:
            yield SentencePair(left, right, number)


def _records(
    path: str,
    options: ReadOptions,
    texts_of: Callable[[str], tuple[str, str]],
    wanted: str,
    lines: Sequence[bytes | None],
    first: int,
) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a file that has source and target on the same line."""
    most = options.max_characters * _LINE_PER_SIDE
    for number, line in enumerate(_decoded(lines, path, first, options, most), first):
        if isinstance(line, BadPair):
            yield line
        elif not line.strip():
            yield SentencePair("", "", number)
        else:
            try:
                texts = texts_of(line)
            except (LookupError, ValueError, TypeError, RecursionError) as error:
                problem = f"expected {wanted} ({type(error).__name__}: {error})"
                fix = "Correct the line, or source_language, target_language or columns."
                if isinstance(error, IndexError) and "," in line and "\t" not in line:
                    problem, fix = "commas but no tab", "Use tabs, or `csv: FILE` instead of tsv."
                raise DataError(f"{path}, line {number:,}: {problem}.", fix=fix) from error
            yield _pair_of(*texts, number, options)


def _tsv_texts(columns: tuple[int, int], line: str) -> tuple[str, str]:
    """Return both texts of a TSV line."""
    cells = line.split("\t")
    return cells[columns[0]], cells[columns[1]]


def _csv_pairs(
    path: Path, columns: tuple[int, int], options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a CSV file.

    Raises:
        DataError: The file is not valid CSV, or a row lacks the columns.
    """
    bad: list[BadPair] = []
    most = options.max_characters * _LINE_PER_SIDE

    def lines() -> Iterator[str]:
        for line in _decoded(_raw_lines(path, most), str(path), 1, options, most):
            if isinstance(line, BadPair):
                bad.append(line)
            else:
                yield f"{line}\n"

    rows = csv.reader(lines(), strict=True)
    num_bad = 0  # lines that `rows` does not count
    languages = (options.source_language, options.target_language)
    try:
        for number, row in enumerate(rows):
            yield from bad
            num_bad += len(bad)
            bad.clear()
            line = rows.line_num + num_bad
            if number == 0 and (named := _named_columns(row, languages)):
                columns = named
            elif row:
                yield _pair_of(row[columns[0]], row[columns[1]], line, options)
            else:
                yield SentencePair("", "", line)
    except (csv.Error, IndexError) as error:
        wanted = f"comma-separated columns {columns[0]} and {columns[1]}, counted from 0"
        line = rows.line_num + num_bad + len(bad)
        problem = f"{path}, line {line:,}: expected {wanted} ({error})."
        fix = "Quote fields that contain commas, quotes or line breaks, or correct `columns`."
        raise DataError(problem, fix=fix) from error
    yield from bad


def _named_columns(row: Sequence[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """Return the columns of both sides if the first row is a header, else None."""
    cells = [cell.strip() for cell in row]
    named = [matching(code, cells) for code in languages]
    if all(len(codes) == 1 for codes in named):
        return cells.index(named[0][0]), cells.index(named[1][0])
    if {"source", "target"} <= set(cells):
        return cells.index("source"), cells.index("target")
    return None


def _json_texts(languages: tuple[str, str], line: str) -> tuple[str, str]:
    """Return both texts of a JSON line; null becomes an empty string."""
    source, target = in_languages(json.loads(line)["translation"], languages)
    for text in (source, target):
        if not isinstance(text, str | None):
            raise TypeError(f"{text!r:.40} is not a string")
    return source or "", target or ""


def columns_of(
    config: CorpusConfig, options: ReadOptions
) -> tuple[list[str], list[Iterator[Any]], Callable[..., Iterable[SentencePair | BadPair]]]:
    """Choose the reader of a corpus.

    Returns:
        The names of the files, iterators over their raw lines or pairs, and a function that parses
        blocks of these into pairs.

    Raises:
        ConfigError: The sacrebleu test set does not exist.
        DataError: The test set cannot be downloaded.
    """
    languages, most = (options.source_language, options.target_language), options.max_characters
    files = [path for path in (config.source, config.target) if path is not None]
    if config.sacrebleu is not None:
        source, references = published_test_set(config.sacrebleu, languages)
        files = [source, references[0]]
    places = files or (config.tsv, config.csv, config.jsonl)
    paths = [path for path in places if path is not None]
    names = [shown_path(path) for path in paths]
    if files:
        lines = [_raw_lines(path, most) for path in files]
        return names, lines, partial(_aligned_pairs, names, options)
    if config.tsv is not None or config.jsonl is not None:
        if config.tsv is not None:
            wanted = f"columns {config.columns[0]} and {config.columns[1]} (counted from 0)"
            texts_of = partial(_tsv_texts, config.columns)
        else:
            wanted = '{{"translation": {{"{}": ..., "{}": ...}}}}'.format(*languages)
            texts_of = partial(_json_texts, languages)
        parse = partial(_records, names[0], options, texts_of, wanted)
        return names, [_raw_lines(paths[0], most * _LINE_PER_SIDE)], parse
    if config.csv is not None:
        return names, [_csv_pairs(config.csv, config.columns, options)], _as_read
    if config.demo is not None:
        texts = demo_pairs(config.demo, *languages)
    else:
        texts = huggingface_pairs(str(config.huggingface), config, languages)
    pairs = (_pair_of(*pair, line, options) for line, pair in enumerate(texts, start=1))
    return names, [pairs], _as_read


def shown_path(path: Path) -> str:
    """Return the name of a corpus file in messages."""
    return STANDARD_INPUT if path.name == SPOOL else str(path)


def _as_read(pairs: Sequence[SentencePair | BadPair], _: int) -> Sequence[SentencePair | BadPair]:
    return pairs
