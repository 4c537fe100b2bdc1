"""Glossaries: terms of the source language, and how they are translated.

A term is found in its spelling and as a whole word; in languages without spaces, as a part of the
text. Its words may be separated by any white space, and its accents may be composed or not. At the
beginning of a sentence its first letter may be a capital. Of several terms at a place, the longest
is found.

A model that has learned glossaries (`GlossaryConfig`) reads the target term in place of the source
term. Any other model reads the source term like a word between tags, and the words of its
translation between these tags are replaced, unless they are the target term.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import regex

from nmt.config.data import annotation
from nmt.errors import DataError
from nmt.files.encoding import open_text
from nmt.files.lines import decoded_lines
from nmt.inference.placeholders import Event
from nmt.text.cleaning import clean_source
from nmt.text.languages import writes_spaces

logger = logging.getLogger(__name__)
Forms = tuple[str, ...]  # Of a target term. The first is written, and the others are accepted.
_FIX = (
    "Write one term per line: source term, tab, target term, and optionally a tab and a note. "
    "Separate several forms by |, and write each source form in one line only."
)
_BORDER = regex.compile(r"(?<!\w)|(?!\w)")
# White space between two words, with its first character as a group; or a letter with its accents.
_UNIT = regex.compile(r"(\s)\s*|\X")
_QUOTED = re.compile(r'\A"((?:[^"]|"")*)"\Z')  # how spreadsheets write text with commas
# The characters of Unicode for annotations, which `clean_source` removes from every source. Groups:
# the forms of a target term, and the words of the translation in its place.
_MARK = re.compile("\ufff9([^\ufffa]*)\ufffa([^\ufff9\ufffb]*)\ufffb")


@dataclass(frozen=True)
class Glossary:
    """Terms of a source language, each with the forms of its target term."""

    terms: Mapping[str, Forms]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; see `parse`.

        Raises:
            DataError: The file is missing, not text, or has bad lines.
        """
        with open_text(path) as stream:
            return cls.parse(decoded_lines(stream, str(path)), str(path))

    @classmethod
    def parse(cls, lines: Iterable[str], name: str = "") -> Self:
        r"""Read lines of a source term, a target term and an optional note, separated by tabs.

        A term may be in the quotes that spreadsheets write. If both terms have the same number of
        forms, each source form has its own first target form.

        Args:
            lines: The lines. Blank lines are ignored.
            name: Name of the file in messages. Without one, repeated lines are not logged.

        Raises:
            DataError: Lines are wrong, or translate a form in different ways. Lists them.

        >>> Glossary.parse(["Hund|Hunde\tdog|dogs"]).terms
        {'Hund': ('dog', 'dogs'), 'Hunde': ('dogs', 'dog')}
        """
        terms = dict[str, Forms]()
        numbers = dict[str, int]()  # of the line of each source form
        problems = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{name or 'glossary'}:{number}"
            columns = line.strip("\r\n").split("\t")
            cells = list(map(_unquoted, columns[:2]))
            cells[0] = clean_source(cells[0])  # as the sentences are
            sides = list(map(_forms_of, cells))
            if len(columns) not in (2, 3) or "" in sides[0] + sides[1]:
                problems.append(f"{place}: expected SOURCE<TAB>TARGET<TAB>NOTE, found {line!r}")
                continue
            sources, targets = sides
            for index, source in enumerate(sources):
                forms = targets
                if len(sources) == len(targets):
                    forms = targets[index:] + targets[:index]
                first = numbers.setdefault(source, number)
                known = terms.setdefault(source, forms)
                if known != forms:
                    clash = f"{source} is {forms[0]} here, but {known[0]} in line {first}"
                    problems.append(f"{place}: {clash}")
                elif name and first != number:
                    logger.warning("%s: %s repeats line %d", place, source, first)
        if problems:
            raise DataError("\n  ".join(problems), fix=_FIX)
        return cls(terms)

    @cached_property
    def _lengths(self) -> list[int]:
        """Different lengths of the terms, the largest first."""
        lengths = set(map(len, self.terms)) - {0}
        return sorted(lengths, reverse=True)

    def find(self, text: str, language: str) -> Iterator[tuple[int, int, Forms]]:
        r"""Yield start, end and target forms of the terms of a sentence, in order.

        Args:
            text: The sentence.
            language: Its language.

        >>> glossary = Glossary.parse(["red\trot", "red dog\tRothund"])
        >>> list(glossary.find("Red dogs, a red dog.", "en"))
        [(0, 3, ('rot',)), (12, 19, ('Rothund',))]
        """
        text, places = _as_term(text)
        borders: Collection[int] = range(len(text) + 1)
        if writes_spaces(language):
            borders = dict.fromkeys(match.start() for match in _BORDER.finditer(text))
        end = 0  # of the last term
        letters = (place for place, character in enumerate(text) if character.isalnum())
        first = next(letters, 0)  # letter or digit
        for start in borders:
            for length in self._lengths:
                stop = start + length
                if start < end or stop not in borders:
                    continue
                term = text[start:stop]
                forms = self.terms.get(term, ())
                if not forms and start <= first:
                    forms = self.terms.get(term[0].lower() + term[1:], ())
                if forms:
                    yield places[start], places[stop], forms
                    end = stop

    def mark(
        self, events: Iterable[Event], language: str, *, annotates: bool
    ) -> tuple[list[Event], list[Forms]]:
        """Split the text of a sentence at its terms.

        Args:
            events: The text and its placeholders.
            language: Language of the sentence.
            annotates: Whether the model reads the target terms.

        Returns:
            The new events, and the forms of each term.
        """
        marked = list[Event]()
        terms = list[Forms]()
        for event in events:
            place = 0
            text = event.text
            for start, end, forms in self.find(text, language):
                terms.append(forms)
                term = text[start:end]
                is_first = not marked and _is_blank(text[:start])
                if start > place:
                    marked.append(Event("text", text[place:start], text[place:start]))
                mark = f"\ufff9{'|'.join(forms)}\ufffa"
                if annotates:
                    form = _capitalized(forms[0]) if is_first else forms[0]
                    marked.append(Event("text", term, annotation(form)))
                else:
                    marked.append(Event("open", mark, name=mark))
                    marked.append(Event("text", term, term))
                    marked.append(Event("close", "\ufffb", name=mark))
                place = end
            if place:
                event = Event("text", text[place:], text[place:])
            marked.append(event)
        return marked, terms


def _unquoted(cell: str) -> str:
    """Return the text of a cell without the quotes of a spreadsheet."""
    return _QUOTED.sub(r"\1", cell).replace('""', '"')


def _forms_of(column: str) -> Forms:
    return tuple(" ".join(form.split()) for form in column.split("|"))


def _as_term(text: str) -> tuple[str, Sequence[int]]:
    """Return a text as source terms are, and the place of each of its characters in the text."""
    written = ""
    places = list[int]()
    for match in _UNIT.finditer(text):
        unit = clean_source(match[1] or match[0])
        start = match.start()
        written += unit
        places += range(start, start + len(unit))
    return written, [*places, len(text)]


def _is_blank(text: str) -> bool:
    """Whether a text has no letter or digit."""
    return not any(map(str.isalnum, text))


def _capitalized(form: str) -> str:
    return form[:1].upper() + form[1:]


def count_forms(forms: Iterable[str], text: str, language: str) -> int:
    """Return how often forms of a term occur in a text.

    >>> count_forms(("dog", "dogs"), "Dogs and a hotdog", "en")
    1
    """
    spellings = sorted({*forms, *map(_capitalized, forms)}, key=len, reverse=True)
    pattern = "|".join(map(re.escape, spellings))  # the longest first
    if writes_spaces(language):
        pattern = rf"(?<!\w)(?:{pattern})(?!\w)"
    return len(regex.findall(pattern, text))


def insert_terms(text: str, language: str) -> str:
    """Write the target terms into a translation with marks.

    Words that contain a form of the term stay. All words stay if the translation contains the forms
    often enough.

    Args:
        text: The translation, with the marks of `Glossary.mark`.
        language: Its language.
    """
    marks = [match[1] for match in _MARK.finditer(text)]
    num_terms = Counter(frozenset(mark.split("|")) for mark in marks)
    plain = _MARK.sub(r"\2", text)
    num_placed = {forms: count_forms(forms, plain, language) for forms in num_terms}

    def written(match: re.Match[str]) -> str:
        words = match[2]
        forms = match[1].split("|")
        key = frozenset(forms)
        is_placed = num_placed[key] >= num_terms[key]
        if is_placed or count_forms(forms, words, language):
            return words
        form = forms[0]
        before = _MARK.sub(r"\2", text[: match.start()])
        if words[:1].isupper() and _is_blank(before):
            form = _capitalized(form)
        if _is_blank(words):  # the translation has no word for the term
            return f" {form}{words}"
        return form

    return _MARK.sub(written, text).strip()
