"""Recognizes text that another tool has segmented, escaped or marked up, by signs in its lines.

A model that is trained on such text also writes it, and its scores are not comparable. nmt needs
plain text, because it segments text itself. The tools and the ways out are in preprocessing.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nmt.config.language_codes import primary_code
from nmt.errors import DataError, join_words
from nmt.files.lines import STANDARD_INPUT
from nmt.installation import read_toml
from nmt.text.languages import writes_spaces

NUM_LINES = 3000  # First lines of a text, which are searched for signs.
# A text with escapes has almost no lines with the same character unescaped: at least this many
# lines with the sign for each line with the character.
_SIGNS_PER_LITERAL = 10
_EXAMPLE_WIDTH = 80
_WITH_ESCAPES = (".csv", ".json", ".jsonl")  # Formats with escapes of their own.
_DATA = read_toml(__file__, "preprocessing.toml")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """A change of a text by another tool. The file of the data describes the fields."""

    name: str
    sign: str
    share: float
    fewest: int = 5  # Smallest number of lines with the sign: a single line may be about it.
    command: str = ""
    advice: str = ""
    literal: str = ""
    start: str = ""


REFUSED = tuple(Preprocessing(**row) for row in _DATA["refused"])
TOKENIZED = Preprocessing(**_DATA["tokenized"])
SPACED = Preprocessing(**_DATA["spaced"])


def find_preprocessing(
    lines: Iterable[str], kinds: Sequence[Preprocessing] = REFUSED
) -> tuple[Preprocessing, str] | None:
    """Return the first of ``kinds`` that has changed a text, and a description; None if plain.

    Args:
        lines: The text. Only the first `NUM_LINES` are used.
        kinds: Kinds to search for.

    Returns:
        The kind, and its name with the first line that has the sign.
    """
    first_lines = list(islice(lines, NUM_LINES))
    nonblank_lines = [line for line in first_lines if line.strip()]
    for kind in kinds:
        sign = re.compile(kind.sign, re.IGNORECASE)
        lines_with_sign = [line for line in nonblank_lines if sign.search(line)]
        min_lines = max(kind.fewest, kind.share * len(nonblank_lines))
        if kind.literal:
            num_literals = sum(kind.literal in line for line in nonblank_lines)
            min_lines = max(min_lines, _SIGNS_PER_LITERAL * num_literals)
        has_sign = len(lines_with_sign) >= min_lines
        if has_sign and re.match(kind.start, nonblank_lines[0], re.IGNORECASE):
            example = lines_with_sign[0]
            line_number = first_lines.index(example) + 1
            shown = example.strip()[:_EXAMPLE_WIDTH]
            return kind, f"{kind.name}, as in line {line_number:,}: {shown}"
    return None


def check_plain(lines: Iterable[str], name: str) -> None:
    """Check that no tool has segmented, escaped or marked up a text.

    Args:
        lines: The text, from its first line.
        name: Path of the file, or a name in messages.

    Raises:
        DataError: A tool has changed the text.
    """
    preprocessing = find_preprocessing(lines)
    if preprocessing is not None:
        kind, description = preprocessing
        raise DataError(f"{name} {description}", fix=_way_out(kind, name))


def tokenized_text(lines: Iterable[str], language: str) -> str | None:
    """Return a warning if a text in a language looks tokenized, else None."""
    kinds = [TOKENIZED] if writes_spaces(language) else [SPACED, TOKENIZED]
    preprocessing = find_preprocessing(lines, kinds)
    if preprocessing is None:
        return None
    kind, description = preprocessing
    command = kind.command.replace("LANGUAGE", primary_code(language))
    warning = f"the text in {language} {description}\n  "
    warning += "A model of tokenized text also writes tokenized text, and its BLEU is comparable "
    return f"{warning}only with tokenized references. To restore the text: {command} < FILE > NEW"


def _way_out(kind: Preprocessing, name: str) -> str:
    """Return the command that restores the text of a file, and the advice of its kind."""
    if not kind.command:
        return kind.advice
    suffix = Path(name).suffix
    file = "FILE" if name == STANDARD_INPUT else join_words([name])
    if suffix in _WITH_ESCAPES:
        return f"Restore each text of {file}, as this command does with lines: {kind.command}"
    command = f"{kind.command} < {file} > NEW"
    readers = _DATA["readers"]  # Command that prints the text of a file, by the file's suffix.
    if suffix in readers:
        command = f"{readers[suffix]} {file} | {kind.command} > NEW"
    return f"Restore the text: {command}\n  {kind.advice}".rstrip()
