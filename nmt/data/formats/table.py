"""Tables: TSV and CSV files, with or without a header, as programs and spreadsheets write them.

In a table without quotes, each line is a row, and any process can parse it. In a table with quotes,
a row may have several lines, so it is parsed while it is read.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from nmt.data.formats.columns import are_texts, choose_columns, code_of_name, named_columns
from nmt.data.formats.layout import Column, Format, Layout, Sample, Wanted
from nmt.data.formats.pair import (
    BadPair,
    Pair,
    PairReader,
    ReadOptions,
    SentencePair,
    pair_of,
    tagged,
)
from nmt.data.formats.text import TextFile, shown_path
from nmt.errors import DataError

_DELIMITERS = ",;\t|"
_SAMPLED_ROWS = 1000
_QUOTE = '"'


@dataclass(frozen=True)
class Table(Format):
    """The format of a table.

    Args:
        delimiter: Between two fields; empty if the file decides.
        is_quoted: Whether quotes always enclose fields; False if the file decides.
    """

    delimiter: str = ""
    is_quoted: bool = False

    def recognises(self, sample: Sample) -> bool:
        """Whether all lines have tabs. Commas do not tell: they are in every text."""
        return self.delimiter == "\t" and all("\t" in line for line in sample.lines if line)

    def layout(self, sample: Sample, wanted: Wanted) -> Layout:
        """Find the delimiter, the quotes, the header and the columns."""
        name = shown_path(sample.path)
        num_skipped = int(sample.lines[0].startswith("sep="))  # For Excel, such as `sep=;`.
        lines = sample.lines[num_skipped:]
        delimiter = self.delimiter or _sniffed_delimiter(lines)
        if not delimiter:
            problem = f"{name}: no comma, semicolon or tab separates the fields of its lines."
            raise DataError(problem, fix="Pass a table with a column for each language.")
        is_quoted = self.is_quoted or _has_quotes(lines, delimiter)
        rows = _first_rows(lines, delimiter, is_quoted)
        if not rows:
            raise DataError(f"{name} has no rows.", fix="Pass a file with sentence pairs.")
        header = [cell.strip() for cell in rows[0]]
        full_rows = [row for row in rows[1:] if len(row) == len(header)]
        cells_of_names = list(zip(header, zip(*full_rows, strict=True), strict=False))
        named = None
        if wanted.languages is not None:
            named = named_columns(header, wanted.languages)
        if named is None:
            # `id` may be a language, but not above numbers.
            names_of_texts = [name for name, cells in cells_of_names if are_texts(cells)]
            named = named_columns(names_of_texts, wanted.languages)
        columns = wanted.columns or named or choose_columns(rows, wanted, name)
        widths = Counter(map(len, rows))
        most_columns = sys.maxsize
        if delimiter != "\t":  # which no sentence contains
            most_columns = min(len(header), widths.most_common(1)[0][0])
        numbers = tuple(_number_of(column, header, max(widths), name) for column in columns)
        source, target, *_ = numbers
        are_named = named is not None or any(isinstance(column, str) for column in columns)
        are_numbers = [
            name.isalpha() and all(map(str.isdecimal, cells)) for name, cells in cells_of_names
        ]
        languages = None
        if are_named or any(are_numbers):
            num_skipped += 1
            if max(source, target) < len(header):
                languages = code_of_name(header[source]), code_of_name(header[target])
        return Layout(
            self.name,
            sample.encoding,
            numbers,
            languages,
            delimiter=delimiter,
            is_quoted=is_quoted,
            most_columns=most_columns,
            num_skipped=num_skipped,
        )

    def open(self, path: Path, layout: Layout, options: ReadOptions) -> PairReader:
        """Open a table; a table with quotes is parsed here, others in any process."""
        file = TextFile(path, layout.encoding, options)
        if layout.is_quoted:
            return PairReader([file.name], [_quoted_pairs(file, layout)])
        lines = islice(file.raw_lines(), layout.num_skipped, None)
        return PairReader([file.name], [lines], partial(_plain_pairs, file, layout))


def _plain_pairs(
    file: TextFile, layout: Layout, lines: Sequence[bytes | None], first: int
) -> Iterator[Pair]:
    """Yield the pairs of a block of lines that are one row each."""
    first_line = first + layout.num_skipped  # in the file
    for number, text in enumerate(file.texts(lines, first_line), first_line):
        if isinstance(text, BadPair):
            yield text
        elif not text.strip() and layout.delimiter not in text:
            yield SentencePair("", "", number)
        else:
            yield _pair_of_row(text.split(layout.delimiter), layout, number, file.options)


def _quoted_pairs(file: TextFile, layout: Layout) -> Iterator[Pair]:
    """Yield the pairs of a table whose fields may contain line breaks.

    A row whose quotes do not match would contain the following rows: only its first line is left
    out, and reading continues at the next line.
    """
    lines = enumerate(file.raw_lines(), start=1)
    row: list[tuple[int, bytes | None]] = []  # the lines of the row that is being read
    bad_lines: list[BadPair] = []  # of this row
    unread = deque[tuple[int, bytes | None]]()  # lines that are read again

    def texts() -> Iterator[str]:
        while True:
            line = unread.popleft() if unread else next(lines, None)
            if line is None:
                return
            row.append(line)
            number, content = line
            [text] = file.texts([content], number)
            if isinstance(text, BadPair):
                bad_lines.append(text)
                # The quotes of a bad line count, but not its text.
                text = (content or b"").decode("utf-8", "replace")
            yield f"{text}\n"

    while True:
        try:
            for cells in csv.reader(texts(), delimiter=layout.delimiter, strict=True):
                first_line, _ = row[0]
                if bad_lines:  # a row with a bad line is dropped as a whole
                    yield bad_lines[0]
                elif not cells:
                    yield SentencePair("", "", first_line)
                elif first_line > layout.num_skipped:
                    yield _pair_of_row(cells, layout, first_line, file.options)
                row.clear()
                bad_lines.clear()
            return
        except csv.Error:
            (first_line, content), *others = row
            yield BadPair("syntax", first_line, (content or b"").decode("utf-8", "replace"))
            unread.extendleft(reversed(others))
            row.clear()
            bad_lines.clear()


def _pair_of_row(row: Sequence[str], layout: Layout, line: int, options: ReadOptions) -> Pair:
    """Return the pair of a row, which may be too short or too long."""
    numbers = [int(column) for column in layout.columns or (0, 1)]
    if len(row) <= max(numbers) or any(row[layout.most_columns :]):
        return BadPair("columns", line, " ".join(row))
    source, target, *codes = (row[number] for number in numbers)
    return pair_of(tagged(source, codes), target, line, options)


def _number_of(column: Column, header: Sequence[str], width: int, name: str) -> int:
    """Return the number of a column that is named, or a number below the width of the table.

    Raises:
        DataError: No column has this name or number.
    """
    if isinstance(column, int) and column < width:
        return column
    if column in header:
        return header.index(str(column))
    problem = f"{name} has no column {column}. Its first row is {', '.join(header)}."
    raise DataError(problem, fix="Set `columns` to two of these names, or to numbers from 0.")


def _sniffed_delimiter(lines: Sequence[str]) -> str:
    """Return the delimiter that splits most lines into the same number of fields; or nothing."""
    # By delimiter: whether all rows have the same number of fields, and how many rows have the
    # usual one.
    usual_rows: dict[str, tuple[bool, int]] = {}
    for delimiter in _DELIMITERS:
        widths = Counter(map(len, _first_rows(lines, delimiter, is_quoted=True)))
        is_regular = len(widths) == 1 and 1 not in widths
        widths.pop(1, None)  # not separated
        usual_rows[delimiter] = is_regular, max(widths.values(), default=0)
    best = max(usual_rows, key=lambda delimiter: usual_rows[delimiter])
    _, num_rows = usual_rows[best]
    return best if num_rows else ""


def _has_quotes(lines: Sequence[str], delimiter: str) -> bool:
    """Whether quotes around fields are those of a spreadsheet, and not part of the text.

    A spreadsheet doubles the quotes inside of a field, and quotes a field with a line break. In
    text, a field may begin with a quote that ends before the field: then quotes are text.
    """
    rows: list[list[str]] = []
    try:
        rows += csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    except csv.Error as error:
        if "end of data" not in str(error):
            return False  # a quote ends before its field
        # The last field is open, perhaps because the sample ends inside of it.
    for line in lines:
        if f"{delimiter}{_QUOTE}" in f"{delimiter}{line}" and _QUOTE * 2 in line:
            return True
    # A field with a delimiter or a line break makes the table irregular, unless it is in quotes.
    widths = {len(row) for row in rows if row}
    widths_without_quotes = {line.count(delimiter) for line in lines if line}
    return len(widths) == 1 and len(widths_without_quotes) > 1


def _first_rows(lines: Sequence[str], delimiter: str, is_quoted: bool) -> list[list[str]]:
    """Return the first rows of a table, without blank ones, as far as they can be parsed."""
    if not is_quoted:
        return [line.split(delimiter) for line in lines[:_SAMPLED_ROWS] if line.strip()]
    rows = []
    texts = (f"{line}\n" for line in lines)
    with suppress(csv.Error):  # the last row may be cut
        for row in islice(csv.reader(texts, delimiter=delimiter), _SAMPLED_ROWS):
            if row:
                rows.append(row)  # noqa: PERF401 - the rows before an error are kept
    return rows


TSV = Table("tsv", "\t")
CSV = Table("csv", is_quoted=True)
