"""Files with one pair, or one side of it, per line: their raw lines, decoded in any process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nmt.data.formats.pair import EXCERPT, BadPair, ReadOptions
from nmt.errors import DataError
from nmt.files.encoding import open_text
from nmt.files.lines import STANDARD_INPUT, decode_line, split_lines

# A line of a table or of JSON contains both sides, other fields, and escapes such as \uXXXX.
LINES_PER_SIDE = 8
_MOST_CHARACTER_BYTES = 4
SPOOL = ".standard-input.tsv"  # Name of a copy of standard input.


def shown_path(path: Path) -> str:
    """Return the name of a file in messages."""
    return STANDARD_INPUT if path.name == SPOOL else str(path)


def raw_lines(path: Path, encoding: str | None, max_characters: int) -> Iterator[bytes | None]:
    """Yield the lines of a file in UTF-8; None for a line with too many bytes."""
    with open_text(path, encoding) as stream:
        yield from split_lines(
            stream, shown_path(path), max_bytes=max_characters * _MOST_CHARACTER_BYTES
        )


def decoded_lines(
    lines: Iterable[bytes | None], name: str, first: int, options: ReadOptions, max_characters: int
) -> Iterator[str | BadPair]:
    """Yield each line as text, or why it cannot be read.

    Args:
        lines: Lines in UTF-8; None for a line that is too long.
        name: Name of the file in messages.
        first: Number of the first line, from 1.
        options: Whether to stop at bytes that are not UTF-8.
        max_characters: Longest line.

    Raises:
        DataError: A line is not UTF-8, and ``options`` do not say to skip it.
    """
    for number, line in enumerate(lines, first):
        if line is None:
            yield BadPair("characters", number)
            continue
        try:
            text = decode_line(line, name, number)
        except DataError:
            if options.on_bad_utf8 == "error":
                raise
            yield BadPair("bad_utf8", number, line[:EXCERPT].decode("utf-8", "replace"))
            continue
        if len(text) > max_characters:
            yield BadPair("characters", number, text[:EXCERPT])
        elif "\0" in text:
            yield BadPair("nul", number, text[:EXCERPT])
        else:
            yield text
