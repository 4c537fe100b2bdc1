"""What the beginning of a file shows: its format, encoding, columns and languages.

Each format is a module of this package with a class that follows `Format`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path

from nmt.config.language_codes import Languages
from nmt.data.formats.pair import PairReader, ReadOptions
from nmt.errors import DataError

Column = int | str  # a number, from 0; or the name in a header, a key or a language code


@dataclass(frozen=True)
class Sample:
    """The beginning of a file.

    Args:
        path: The file. Its name may be misleading.
        start: First bytes, decompressed and in UTF-8. The last line may be cut.
        encoding: Encoding of the file, such as ``utf-8`` or ``utf-16-le``.
    """

    path: Path
    start: bytes
    encoding: str

    @cached_property
    def text(self) -> str:
        """The beginning as text, without a byte order mark. Bytes that are not text are U+FFFD."""
        return self.start.decode("utf-8-sig", "replace")

    @cached_property
    def lines(self) -> list[str]:
        """The complete lines."""
        lines = self.text.split("\n")
        if len(lines) > 1:
            lines.pop()  # cut, or empty after the last line feed
        return [line.removesuffix("\r") for line in lines]


@dataclass(frozen=True)
class Wanted:
    """What the user has said about a file; None where the file decides.

    Args:
        languages: Codes of the source and the target language.
        columns: Columns of source and target, and of the target language of each row.
        format: Name of the format.
        encoding: Encoding; None also for that of a byte order mark.
    """

    languages: Languages | None = None
    columns: tuple[Column, ...] | None = None
    format: str | None = None
    encoding: str | None = None

    def choices(self, columns: Sequence[Column]) -> Iterator[Wanted]:
        """Yield each choice of two of these columns, in any order."""
        return (replace(self, columns=pair) for pair in permutations(columns, 2))


class UncertainError(DataError):
    """It is not certain which columns or languages are source and target.

    Args:
        problem: What is not certain.
        fix: How to name them in a configuration.
        choices: What the user may mean.
    """

    def __init__(self, problem: str, *, fix: str, choices: Iterable[Wanted] = ()) -> None:
        super().__init__(problem, fix=fix)
        self.choices = choices


@dataclass(frozen=True)
class Layout:
    """How the sentence pairs of a file are stored.

    Args:
        format: Name of the format.
        encoding: Encoding of the text.
        columns: Columns of source and target, and of the target language of each row if there is
            one; for a translation memory, its language codes.
        languages: Language codes of source and target as far as the file names them.
        delimiter: Between the fields of a table.
        is_quoted: Whether the fields of a table may be in quotes, which are not part of the text.
        most_columns: Of a row. A row with more text may have been split within a sentence.
        num_skipped: Number of first lines of a table before its pairs, such as the header.
    """

    format: str
    encoding: str = "utf-8"
    columns: tuple[Column, ...] | None = None
    languages: tuple[str | None, str | None] | None = None
    delimiter: str = "\t"
    is_quoted: bool = False
    most_columns: int = sys.maxsize
    num_skipped: int = 0

    def __str__(self) -> str:
        """Return how a file is read, in words: "csv with a header, columns 1 (en) and 2 (de)"."""
        text = self.format
        if self.num_skipped:
            text += " with a header"
        if self.encoding != "utf-8":
            text += f" in {self.encoding}"
        languages = self.languages or (None, None)
        columns = []
        for column, language in zip(self.columns or (), languages, strict=False):
            is_told = language is None or language == column
            columns.append(str(column) if is_told else f"{column} ({language})")
        if columns:
            text += f", columns {' and '.join(columns)}"
        return text


@dataclass(frozen=True)
class Format(ABC):
    """One format of files that contain both sides.

    Args:
        name: Name in configurations and messages, such as ``tmx``. `file_names.toml` has the
            suffixes of its files.
    """

    name: str

    @abstractmethod
    def recognises(self, sample: Sample) -> bool:
        """Whether the content of a file certainly has this format, whatever its name is."""

    @abstractmethod
    def layout(self, sample: Sample, wanted: Wanted) -> Layout:
        """Find out how the pairs of a file are stored.

        Raises:
            DataError: The file does not have this format; or it is not certain which columns or
                languages are source and target. The message names the possible ones.
        """

    @abstractmethod
    def open(self, path: Path, layout: Layout, options: ReadOptions) -> PairReader:
        """Open a file to read its pairs.

        Raises:
            DataError: The file is missing or damaged. Reading raises it, too, if a pair cannot be
                read and `ReadOptions` does not say to skip it.
        """
