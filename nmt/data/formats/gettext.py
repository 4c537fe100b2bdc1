"""Gettext catalogues (PO): the messages of a program, with their translations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import polib

from nmt.data.formats.layout import Sample
from nmt.data.formats.pair import BadPair
from nmt.data.formats.text import TextFile
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat

_EMPTY_HEADER = 'msgid ""\nmsgstr ""\n'
_MOST_CHARACTERS = 1_000_000  # of an entry
_LINE = re.compile(r'\s*(#|"|msg(ctxt|id|id_plural|str|str\[\d+\])\s*"|$)')
_UNCLOSED = re.compile(r'\s*[^\s#].*[^"\s]\s*$')  # polib would cut the last character
_OBSOLETE = "#~"
_STARTS = ("#", "msgctxt", "msgid")  # of an entry, after the translation of the previous one


@dataclass
class _Entry:
    """The text of an entry, from its first line in the file; or why it cannot be read."""

    line: int
    text: str = ""
    bad: BadPair | None = None


def _is_catalogue(sample: Sample) -> bool:
    has_entry = any(line.startswith("msgid ") for line in sample.lines)
    return has_entry and all(map(_LINE.match, sample.lines))


def _units(file: TextFile) -> Iterator[Unit | BadPair]:
    """Yield the entries; fuzzy and obsolete ones without a translation; of plurals, the first form.

    Contexts are ignored. A header names the target language, and may name the source language.
    """
    source_language = SOURCE
    target_language = TARGET
    for entry in _entries(file):
        if entry.bad is not None:
            yield entry.bad._replace(line=entry.line)
            continue
        catalogue = _parsed(entry.text)
        if catalogue is None:
            yield BadPair("syntax", entry.line, entry.text)
            continue
        header = catalogue.metadata
        if header:
            source_language = header.get("X-Source-Language") or SOURCE
            target_language = header.get("Language") or TARGET
        for message in catalogue:  # one or none
            translation = None
            if message.translated():  # and not fuzzy or obsolete
                forms = message.msgstr_plural or {0: message.msgstr}
                translation = forms[min(forms)]
            yield Unit(entry.line, {source_language: message.msgid, target_language: translation})


def _parsed(entry: str) -> polib.POFile | None:
    """Return the catalogue of an entry alone; None if its syntax is wrong."""
    try:
        catalogue = polib.pofile(entry)  # its line feed makes it a text, not a path
    except OSError:
        return None
    is_lost = "msgid" in entry and not (catalogue or catalogue.metadata)
    return None if is_lost and _EMPTY_HEADER not in entry else catalogue


def _entries(file: TextFile) -> Iterator[_Entry]:
    """Yield the entries. The first comment or message after a translation starts the next one."""
    entry = _Entry(line=1)
    has_translation = False
    for number, item in enumerate(file.texts(file.raw_lines(), 1), start=1):
        text = item.text if isinstance(item, BadPair) else item
        content = text.lstrip().removeprefix(_OBSOLETE).lstrip()
        if has_translation and content.startswith(_STARTS):
            yield entry
            entry = _Entry(number)
            has_translation = False
        has_translation |= content.startswith("msgstr")
        if isinstance(item, BadPair):
            entry.bad = item
        elif len(entry.text) > _MOST_CHARACTERS:
            entry.bad = BadPair("characters", number)
        elif _UNCLOSED.match(text):
            entry.bad = BadPair("syntax", number, text)
        else:
            entry.text += f"{text}\n"
    yield entry


PO = UnitFormat("po", _units, _is_catalogue)
