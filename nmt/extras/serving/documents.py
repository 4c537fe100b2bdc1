"""Translate documents (plain text, HTML, SubRip and WebVTT subtitles) and keep their structure.

Usage::

    document = read_document(text, "html", "de")
    translations = ...  # text and alignment of each of document.sentences
    page = document.rebuild(translations, " ")

Guarantees:

- Everything except text is kept byte for byte: tags and attributes, scripts, code, placeholders,
  timings and blank lines. A paragraph whose translation equals its source is kept, too.
- In a translated paragraph, entities become characters, and white space becomes a single space,
  except for line breaks.
- Every tag is written once, balanced and nested as in the source: see
  `nmt.inference.placeholders`.
- Malformed HTML is kept as it is. Time and memory are linear in the length of the document.

The HTML parser of the standard library takes quadratic time on unclosed tags (36 s for 60 kB of
``<a``) and does not report offsets. This module finds the tags with regular expressions that never
backtrack.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import srt

from nmt.errors import DataError
from nmt.inference.placeholders import (
    Escape,
    Event,
    Kind,
    Paragraph,
    Translation,
    ends_of,
    text_events,
)
from nmt.registry import chosen

Part = str | Sequence[Event]  # Text that is kept, or the events of a paragraph.
# The package srt takes cubic time on long numbers, and quadratic time on long white space.
_NO_SUBRIP = re.compile(r"\d{13}|\s{100}")
# The timing of a cue, and the lines up to a blank line. Group: the lines.
_VTT_CUE = re.compile(r"-->[^\n]*+\n((?:[^\S\n]*+\S[^\n]*+\n?)+)")
_FOOTNOTE_TOKENS = 8  # tags and texts in the mark of a footnote
_CUE_TAG = re.compile(r"<(/?)([a-zA-Z]++)[^<>]*+>|<[\d:.]++>|\{\\[^{}]*+\}")
_TURN = re.compile(r"(?:\s|<[^<>]*+>|\{\\[^{}]*+\})*+[-\u2013\u2014](?=\s|\w)\s*")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});?")
_TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\s/<>"']*+)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>"""
    r"|<[/!?a-zA-Z][^<>]*+>"  # malformed, or a declaration
)
_PROTECTED = re.compile(
    r"""\s(?:translate\s*=\s*["']?no(?=["'\s>])|class\s*=\s*["']?[^"'>]{0,999}\bnotranslate\b)""",
    re.IGNORECASE,
)


def unescape(text: str) -> str:
    """Convert HTML entities to characters. `html.unescape` alone fails on very long numbers.

    >>> unescape("&Auml;&amp;&#66;&bla;")
    'Ä&B&bla;'
    """
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def read_lines(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    r"""Yield the lines of plain text and the separators between them; tabs separate, too.

    >>> [part if isinstance(part, str) else part[0].text for part in read_lines("A\n\nB\tC")]
    ['A', '\n\n', 'B', '\t', 'C']
    """
    for part in re.findall(r"[\n\t]+|[^\n\t]+", text):
        if part[0] in "\n\t":
            yield part
        else:
            yield list(text_events(part, protect))


def read_cues(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    """Yield the texts of subtitles, and the timings between them.

    The lines of a subtitle form one paragraph. A line that begins with a dash is a new speaker, and
    begins a new paragraph.

    Raises:
        DataError: The text is not in SubRip format.
    """
    cues = []
    if not _NO_SUBRIP.search(text):
        with suppress(srt.SRTParseError, ValueError, OverflowError):
            cues = list(srt.parse(text))
    if text.strip() and not cues:
        fix = "Send .srt subtitles, or another format."
        raise DataError("The document is not valid SubRip.", fix=fix)
    end = 0  # of the last cue
    for cue in cues:
        lines = r"\r?\n".join(map(re.escape, cue.content.split("\n")))
        match = re.compile(rf"-[ -] *>[^\n]*\n?({lines})").search(text, end)
        if match:
            yield text[end : match.start(1)]
            yield from _turns(match[1], protect)
            end = match.end()
    yield text[end:]


def _turns(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the paragraphs of a subtitle, one for each speaker."""
    lines = ""  # of the speaker
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        match = _TURN.match(line)
        if match is None:
            lines += line
        else:
            yield from _cue(lines, protect)
            yield match[0]
            lines = line[match.end() :]
    yield from _cue(lines, protect)


def _cue(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the events of some lines, and their last line break."""
    body = text.rstrip("\r\n")
    tags = list(_CUE_TAG.finditer(body))
    closed = {tag[2] for tag in tags if tag[1]}  # names of tags that end somewhere
    events: list[Event] = []
    end = 0  # of the last tag
    for tag in tags:
        events += text_events(body[end : tag.start()], protect)
        end = tag.end()
        slash, name = tag.groups()
        kind: Kind = "void"
        if slash:
            kind = "close"
        elif name in closed:
            kind = "open"
        events.append(Event(kind, tag[0], name=name or ""))
    yield [*events, *text_events(body[end:], protect)]
    yield text[len(body) :]


def write_srt(text: str) -> str:
    """Write text for SubRip. It has no escapes, so the bracket of a possible tag is replaced."""
    return re.sub(r"<(?![^/a-zA-Z])", "\u2039", text)


def read_vtt(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    """Yield the texts of WebVTT subtitles, and the timings between them; see `read_cues`.

    Raises:
        DataError: The text is not in WebVTT format.
    """
    if not text.lstrip("\ufeff").startswith("WEBVTT"):
        fix = "Send .vtt subtitles, or another format."
        raise DataError("The document is not valid WebVTT.", fix=fix)
    end = 0  # of the last cue
    for match in _VTT_CUE.finditer(text):
        yield text[end : match.start(1)]
        yield from _turns(match[1], protect)
        end = match.end()
    yield text[end:]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KEPT_INLINE = _names("code kbd samp var svg math picture object script style")
_KEPT = _KEPT_INLINE | _names(
    "pre textarea template iframe video audio canvas xmp noembed noframes listing"
)
_RAW_TEXT = _names("script style textarea iframe xmp noembed noframes")
_VOID_INLINE = _names("img input wbr")
_INLINE = (_KEPT_INLINE | _VOID_INLINE) | _names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q rb rp rt rtc "
    "ruby s small span strike strong sub sup time tt u br !--"
)


def tokenize(text: str) -> Iterator[Event]:
    """Yield the tags of HTML, and the text between them, raw.

    The name is empty for text, declarations and malformed tags.
    """
    place = 0  # from which the next tag is searched
    text_start = 0
    last_comment = text.rfind("-->")
    while True:
        start = text.find("<", place)
        if start < 0:
            break
        kind: Kind = "void"
        match = _TAG.match(text, start)
        if text.startswith("<!--", start) and start < last_comment:
            end = text.index("-->", start) + 3
            name = "!--"
        elif match:
            end = match.end()
            name = (match[2] or "").lower()
            if name == "br":
                kind = "close" if match[1] else "break"
            elif name and name not in _VOID_INLINE:
                kind = "close" if match[1] else "open"
        else:
            place = start + 1
            continue
        if start > text_start:
            yield Event("text", text[text_start:start])
        yield Event(kind, text[start:end], name=name)
        place = end
        text_start = end
        if kind == "open" and name in _RAW_TEXT:
            closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, end)
            place = closing.start() if closing else len(text)
            if place > end:
                yield Event("void", text[end:place])
            text_start = place
    if text_start < len(text):
        yield Event("text", text[text_start:])


def read_html(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    """Yield the paragraphs of HTML, and the tags between them. Two line breaks end a paragraph."""
    tokens = list(tokenize(text))
    ends = ends_of(tokens)
    events: list[Event] = []
    place = 0
    while place < len(tokens):
        token = tokens[place]
        name = token.name
        end = place + 1
        inside = tokens[place : min(ends.get(place, len(tokens)), place + _FOOTNOTE_TOKENS)]
        is_footnote = name == "sup" and not any(
            _has_letter(event.raw) for event in inside if event.kind == "text"
        )
        if token.kind == "open" and (name in _KEPT or is_footnote or _PROTECTED.search(token.raw)):
            end = ends.get(place, len(tokens))
            if end < len(tokens) and tokens[end].name == name:
                end += 1
            token = Event("void", _raw(tokens[place:end]), name=name)
        place = end
        if token.kind == "text":
            events += text_events(token.raw, protect, unescape)
        elif name in _INLINE:
            events.append(token)
        else:
            yield events
            yield token.raw
            events = []
        # Two breaks, possibly with white space between them, end the paragraph.
        kinds = [event.kind for event in events[-3:] if event.kind != "text" or event.text.strip()]
        if kinds[-2:] == ["break", "break"] and events[-1].kind == "break":
            num_breaks = 2 if events[-2].kind == "break" else 3
            yield events[:-num_breaks]
            yield _raw(events[-num_breaks:])
            events = []
    yield events


# For each format: how to split a document into parts (joined, they equal the document), and how to
# escape the text of a translation.
_FORMATS: dict[str, tuple[Callable[[str, Sequence[str]], Iterable[Part]], Escape]] = {
    "txt": (read_lines, str),
    "html": (read_html, partial(html.escape, quote=False)),
    "srt": (read_cues, write_srt),
    "vtt": (read_vtt, write_srt),
}

FORMATS = tuple(_FORMATS)  # The names are also file extensions.
_ALIASES = {"htm": "html", "xhtml": "html", "text": "txt", "plain": "txt"}


@dataclass(frozen=True)
class Document:
    """A document split into sentences, ready to be rebuilt with their translations."""

    # The text to translate, in order, without tags. Sentences without a letter are left out.
    sentences: tuple[str, ...]
    parts: tuple[str | Paragraph, ...]  # Text that is kept, and the paragraphs of the sentences.
    escape: Escape  # Escapes text for the format.

    def rebuild(self, translations: Sequence[Translation], joiner: str = " ") -> str:
        """Return the document with its sentences translated.

        Args:
            translations: Text and word alignment of each of ``sentences``. Without an alignment,
                tags keep their relative positions.
            joiner: Separator between two sentences of the target language.
        """
        rest = iter(translations)
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            of_part = [
                next(rest) if _has_letter(sentence) else (sentence, None)
                for sentence in part.sentences
            ]
            if tuple(text for text, _ in of_part) == part.sentences:
                written.append(_raw(part.events))
            else:
                written.append(part.render(of_part, joiner, self.escape))
        return "".join(written)


def read_document(
    text: str,
    kind: str,
    language: str,
    max_sentences: int | None = 1,
    protect: Sequence[str] = (),
    max_characters: int | None = None,
) -> Document:
    """Split a document into its sentences and the structure around them.

    Args:
        text: The document. Its line breaks are kept.
        kind: One of `FORMATS`, or another file extension such as ``htm``.
        language: Language of the text, for splitting sentences. Unknown languages are split like
            English.
        max_sentences: See `nmt.text.sentences.split_text`.
        protect: See `nmt.inference.placeholders.placeholder_pattern`.
        max_characters: See `nmt.text.sentences.split_text`.

    Raises:
        ConfigError: The format is unknown.
        DataError: The document does not have this format.
    """
    name = kind.lower().removeprefix(".")
    read, escape = chosen(_FORMATS, _ALIASES.get(name, name), "document format")
    parts: list[str | Paragraph] = []
    for part in read(text, protect):
        if isinstance(part, str):
            parts.append(part)
        elif _has_letter("".join(event.text for event in part)):
            parts.append(Paragraph.read(part, language, max_sentences, max_characters))
        else:
            parts.append(_raw(part))
    paragraphs = (part for part in parts if isinstance(part, Paragraph))
    sentences = (sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    return Document(tuple(filter(_has_letter, sentences)), tuple(parts), escape)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _raw(events: Iterable[Event]) -> str:
    return "".join(event.raw for event in events)
