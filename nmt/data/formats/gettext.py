"""Gettext catalogues (PO): the messages of a program, with their translations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import polib

from nmt.data.formats.layout import Sample
from nmt.data.formats.lines import decoded_lines
from nmt.data.formats.markup import TextSource
from nmt.data.formats.pair import EXCERPT, BadPair, ReadOptions
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat
from nmt.files.lines import MAX_LINE_BYTES, split_lines

_MOST_CHARACTERS = 1_000_000  # of an entry
_KEYWORD = re.compile(r"(?:#~\s*)?(msg\w+)")
_LINE = re.compile(r'\s*(#|"|msg(ctxt|id|id_plural|str|str\[\d+\])\s*"|$)')


@dataclass
class _Entry:
    """The lines of an entry.

    Args:
        lines: Comments, message and translation.
        line: Line of the message in the file.
        num_characters: Of all lines.
        bad: Why a line cannot be read.
    """

    lines: list[str] = field(default_factory=list)
    line: int = 0
    num_characters: int = 0
    bad: BadPair | None = None

    def add(self, text: str, keyword: str, number: int) -> None:
        """Add a line."""
        self.num_characters += len(text)
        if keyword == "msgid":
            self.line = number
        if self.num_characters > _MOST_CHARACTERS:
            self.bad = BadPair("characters", self.line or number)
            self.lines.clear()
        else:
            self.lines.append(f"{text}\n")


def _is_catalogue(sample: Sample) -> bool:
    has_entry = any(line.startswith("msgid ") for line in sample.lines)
    return has_entry and all(map(_LINE.match, sample.lines))


def _units(source: TextSource) -> Iterator[Unit | BadPair]:
    """Yield the entries; fuzzy and obsolete ones without a translation; of plurals, the first form.

    Contexts are ignored. A header names the target language, and may name the source language.
    """
    source_language = SOURCE
    target_language = TARGET
    for entry in _entries(source):
        if entry.bad is not None:
            yield entry.bad._replace(line=entry.line or entry.bad.line)
            continue
        if not entry.line:  # only comments
            continue
        text = "".join(entry.lines)
        try:
            catalogue = polib.pofile(text)  # the line feed makes it a text, not a path
        except OSError:
            yield BadPair("syntax", entry.line, text[:EXCERPT])
            continue
        header = catalogue.metadata
        if header:
            source_language = header.get("X-Source-Language") or SOURCE
            target_language = header.get("Language") or TARGET
        elif not catalogue:
            yield BadPair("syntax", entry.line, text[:EXCERPT])
        for message in catalogue:
            translation = None
            if message.translated():  # and not fuzzy or obsolete
                forms = message.msgstr_plural or {0: message.msgstr}
                translation = forms[min(forms)]
            texts = {source_language: message.msgid, target_language: translation}
            yield Unit(entry.line, texts)


def _entries(source: TextSource) -> Iterator[_Entry]:
    """Yield the entries: each begins with comments, a context or a message after a translation."""
    options = ReadOptions("", "", source.on_bad_utf8)
    entry = _Entry()
    has_translation = False
    with source.open() as stream:
        lines = split_lines(stream, source.name, max_bytes=MAX_LINE_BYTES)
        texts = decoded_lines(lines, source.name, 1, options, MAX_LINE_BYTES)
        for number, text in enumerate(texts, start=1):
            bad = text if isinstance(text, BadPair) else None
            readable = text.excerpt if isinstance(text, BadPair) else text
            content = readable.lstrip()
            match = _KEYWORD.match(content)
            keyword = match[1] if match else ""
            is_comment = content.startswith("#") and not content.startswith("#~")
            if has_translation and (is_comment or keyword in ("msgctxt", "msgid")):
                yield entry
                entry = _Entry()
                has_translation = False
            has_translation |= keyword.startswith("msgstr")
            entry.add(readable, keyword, number)
            entry.bad = entry.bad or bad
    yield entry


PO = UnitFormat("po", (".po", ".pot"), _is_catalogue, _units)
