"""Text files: their lines, which are decoded in any process; and files aligned line by line.

Aligned files are the only format whose sides are in different files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nmt.data.formats.file_names import is_set
from nmt.data.formats.pair import BadPair, Pair, PairReader, ReadOptions, SentencePair, tagged
from nmt.errors import DataError, join_words
from nmt.files.encoding import (
    START_BYTES,
    UTF8,
    open_text,
    probable_encoding,
    standard_encoding,
)
from nmt.files.lines import (
    STANDARD_INPUT,
    decode_line,
    first_bytes,
    plain_name,
    read_pieces,
    split_lines,
)
from nmt.registry import load_attribute

# Of a line, and of a side. A line of a table or of JSON contains both sides, other fields, and
# escapes such as \uXXXX.
_BYTES_PER_CHARACTER = 32
_MOST_LINES = 0.9  # Share of the lines with other letters than ASCII.
SPOOL = ".standard-input.tsv"  # Name of a copy of standard input.


def shown_path(path: Path) -> str:
    """Return the name of a file in messages."""
    return STANDARD_INPUT if path.name == SPOOL else str(path)


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus, as the user says that it is read.

    Args:
        path: The file.
        encoding: Encoding; None for UTF-8, or that of the byte order mark.
        options: Longest side, and whether to stop at bytes that are not text.
    """

    path: Path
    encoding: str | None
    options: ReadOptions

    @property
    def name(self) -> str:
        """Name of the file in messages."""
        return shown_path(self.path)

    def raw_lines(self) -> Iterator[bytes | None]:
        """Yield the lines in UTF-8; None for a line with too many bytes."""
        max_bytes = self.options.max_characters * _BYTES_PER_CHARACTER
        with open_text(self.path, self.encoding) as stream:
            yield from split_lines(stream, self.name, max_bytes=max_bytes)

    def check_text(self) -> None:
        """Raise a DataError if the file has no text, before each blank line becomes a pair."""
        with open_text(self.path, self.encoding) as stream:
            pieces = read_pieces(stream, self.name, START_BYTES)
            if not any(map(bytes.strip, pieces)):
                raise DataError(
                    f"{self.name} is empty, or all its lines are blank.",
                    fix="Pass a file with one sentence per line.",
                )

    def texts(self, lines: Iterable[bytes | None], first: int) -> Iterator[str | BadPair]:
        """Yield each line as text, or why it cannot be read.

        Args:
            lines: Raw lines, as `raw_lines` yields them.
            first: Number of the first line, from 1.

        Raises:
            DataError: A line is not text in the encoding, and ``options`` do not say to skip it.
        """
        name = self.name
        for number, line in enumerate(lines, first):
            if line is None:
                yield BadPair("characters", number)
                continue
            try:
                text = decode_line(line, name, number)
            except DataError as error:
                if self.options.on_bad_utf8 == "error":
                    raise self._not_text(error) from error
                yield BadPair("bad_utf8", number, line.decode("utf-8", "replace"))
                continue
            if "\0" in text:
                yield BadPair("nul", number, text)
            else:
                yield text

    def _not_text(self, error: DataError) -> DataError:
        """Add the probable encoding of the file to the error about bytes that are not UTF-8."""
        problem = error.problem
        if "is not UTF-8" not in problem:  # a binary file
            return error
        if self.encoding not in (None, UTF8):
            problem = problem.replace("is not UTF-8", f"is not text in {self.encoding}")
        start = b""
        # Standard input cannot be read again.
        with suppress(DataError):
            start = first_bytes(self.path, START_BYTES)
        if b"\0" not in start:  # other lines say nothing about the encoding
            lines = [line for line in start.splitlines() if not line.isascii()]
            bad_lines = [line for line in lines if "\ufffd" in line.decode(UTF8, "replace")]
            start = b""
            if len(bad_lines) > _MOST_LINES * len(lines):  # else lines in UTF-8 would be ruined
                start = b"\n".join(bad_lines)
        probable = probable_encoding(start) if start else None
        if probable in (None, self.encoding):
            fix = f"Set `encoding` to the encoding of the file, or {self.options.skip_advice}."
            return DataError(problem, fix=fix)
        name = standard_encoding(str(probable))
        ways = [f"set `encoding` to {name}", self.options.skip_advice]
        if plain_name(self.path) == self.path.name and self.path.is_file():
            iconv_name = re.sub("-(?=[lb]e$)", "", name).replace("_", "-")
            file = join_words([str(self.path)])
            ways.insert(0, f"convert it (iconv -f {iconv_name} -t utf-8 {file} > NEW)")
        fix = f"The file is probably {name}: {', '.join(ways[:-1])}, or {ways[-1]}."
        return DataError(problem, fix=fix)


def open_sides(
    files: Sequence[Path],
    encoding: str | None,
    options: ReadOptions,
    languages: Path | None = None,
) -> PairReader:
    """Open aligned text files, or the sides of a set of WMT, to read their pairs.

    Args:
        files: The source and one or more references.
        encoding: Encoding of the files.
        options: How to read them.
        languages: A file with a language code for each line.
    """
    if all(map(is_set, files)):
        open_set = load_attribute("nmt.data.formats.wmt:open_set")  # which loads lxml
        reader: PairReader = open_set(files, encoding, options)
        return reader
    paths = filter(None, (*files, languages))
    texts = [TextFile(path, encoding, options) for path in paths]
    for text in texts[: len(files)]:
        text.check_text()
    lines = [text.raw_lines() for text in texts]
    return PairReader(
        [text.name for text in texts], lines, partial(_aligned_pairs, texts, len(files))
    )


def _aligned_pairs(files: Sequence[TextFile], num_sides: int, *block: Any) -> Iterator[Pair]:
    """Yield the pairs of a block: the lines of each file, and the number of the first line."""
    *columns, first = block
    most = files[0].options.max_characters
    texts = [file.texts(lines, first) for file, lines in zip(files, columns, strict=True)]
    sides: tuple[Any, ...]
    for number, sides in enumerate(zip(*texts, strict=True), first):
        if BadPair in map(type, sides):
            yield next(side for side in sides if isinstance(side, BadPair))
        elif max(map(len, sides)) > most:
            yield BadPair("characters", number, max(sides, key=len))
        else:
            source = tagged(sides[0], sides[num_sides:])
            yield SentencePair(source, sides[1], number, sides[2:num_sides])
