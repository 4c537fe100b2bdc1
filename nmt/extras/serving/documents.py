"""Translate documents (plain text, HTML, SubRip subtitles) and keep their structure.

Usage::

    document = read_document(text, "html", "de")
    translations = ...  # text and alignment of each of document.sentences
    page = document.rebuild(translations, " ")

Guarantees:

- Everything except text is kept byte for byte: tags and attributes, scripts, code, addresses,
  timings and blank lines. A paragraph whose translation equals its source is kept, too.
- In a translated paragraph, entities become characters, and white space becomes a single space,
  except for line breaks.
- Every tag is written once, balanced and nested as in the source (see ``paragraph``).
- Malformed HTML is kept as it is. Time and memory are linear in the length of the document.

The HTML parser of the standard library takes quadratic time on unclosed tags (36 s for 60 kB of
``<a``) and does not report offsets. This module finds the tags with regular expressions that never
backtrack.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import srt

from nmt.errors import DataError
from nmt.extras.serving.paragraph import Escape, Event, Kind, Paragraph, Translation, ends_of
from nmt.registry import chosen

Part = str | Sequence[Event]  # Text that is kept, or the events of a paragraph.
_ADDRESS = re.compile(
    r"""\b(?:https?://|www\.)[^\s<>"']*[^\s<>"'.,;:!?)\]}*_~]"""
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{2,24})+"
)
# The package srt takes cubic time on long numbers, and quadratic time on long white space.
_NO_SUBRIP = re.compile(r"\d{13}|\s{100}")
_CUE_TAG = re.compile(r"<(/?)([a-zA-Z]++)[^<>]*+>|\{\\[^{}]*+\}")
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


def text_events(raw: str, decode: Callable[[str], str] = str) -> Iterator[Event]:
    """Yield text and, as separate events, web and mail addresses (never translated)."""
    place = 0
    for match in _ADDRESS.finditer(raw):
        if before := raw[place : match.start()]:
            yield Event("text", before, decode(before))
        yield Event("void", match[0])
        place = match.end()
    if rest := raw[place:]:
        yield Event("text", rest, decode(rest))


def read_lines(text: str) -> Iterator[str | list[Event]]:
    r"""Yield the lines of plain text and the separators between them; tabs separate, too.

    >>> [part if isinstance(part, str) else part[0].text for part in read_lines("A\n\nB\tC")]
    ['A', '\n\n', 'B', '\t', 'C']
    """
    for part in re.findall(r"[\n\t]+|[^\n\t]+", text):
        yield part if part[0] in "\n\t" else [*text_events(part)]


def read_cues(text: str) -> Iterator[str | list[Event]]:
    """Yield the texts of subtitles, and the timings between them.

    The lines of a subtitle form one paragraph. A line that begins with a dash is a new speaker, and
    begins a new paragraph.

    Raises:
        DataError: The text is not in SubRip format.
    """
    try:
        cues = [] if _NO_SUBRIP.search(text) else [*srt.parse(text)]
    except (srt.SRTParseError, ValueError, OverflowError):
        cues = []
    if text.strip() and not cues:
        raise DataError(
            "The document is not valid SubRip.", fix="Send .srt subtitles, or another format."
        )
    place = 0
    for cue in cues:
        lines = r"\r?\n".join(map(re.escape, cue.content.split("\n")))
        if found := re.compile(rf"-[ -] *>[^\n]*\n?({lines})").search(text, place):
            yield text[place : found.start(1)]
            yield from _turns(found[1])
            place = found.end()
    yield text[place:]


def _turns(text: str) -> Iterator[str | list[Event]]:
    lines = ""
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if turn := _TURN.match(line):
            yield from _cue(lines)
            yield turn[0]
            lines, line = "", line[turn.end() :]
        lines += line
    yield from _cue(lines)


def _cue(text: str) -> Iterator[str | list[Event]]:
    """Yield the events of some lines, and their last line break."""
    body, place, events = text.rstrip("\r\n"), 0, list[Event]()
    closed = {match[2] for match in _CUE_TAG.finditer(body) if match[1]}
    for match in _CUE_TAG.finditer(body):
        events += text_events(body[place : match.start()])
        place, name = match.end(), match[2] or ""
        kind: Kind = "close" if match[1] else "open" if name in closed else "void"
        events.append(Event(kind, match[0], name=name))
    yield [*events, *text_events(body[place:])]
    yield text[len(body) :]


def write_srt(text: str) -> str:
    """Write text for SubRip. It has no escapes, so the bracket of a possible tag is replaced."""
    return re.sub(r"<(?![^/a-zA-Z])", "\u2039", text)


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
# Kind, raw text, and tag name. The name is empty for text, declarations and malformed tags.
Token = tuple[Kind, str, str]


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tags of HTML, and the text between them."""
    place = text_start = 0
    last_comment = text.rfind("-->")
    while (start := text.find("<", place)) >= 0:
        kind: Kind = "void"
        if text.startswith("<!--", start) and start < last_comment:
            end, name = text.index("-->", start) + 3, "!--"
        elif match := _TAG.match(text, start):
            end, name = match.end(), (match[2] or "").lower()
            if name and name not in _VOID_INLINE:
                kind = "close" if match[1] else "break" if name == "br" else "open"
        else:
            place = start + 1
            continue
        if start > text_start:
            yield "text", text[text_start:start], ""
        yield kind, text[start:end], name
        place = text_start = end
        if kind == "open" and name in _RAW_TEXT:
            closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, place)
            text_start = closing.start() if closing else len(text)
            if text_start > place:
                yield "void", text[place:text_start], ""
            place = text_start
    if text_start < len(text):
        yield "text", text[text_start:], ""


def read_html(text: str) -> Iterator[str | list[Event]]:
    """Yield the paragraphs of HTML, and the tags between them. Two line breaks end a paragraph."""
    tokens = list(tokenize(text))
    ends = ends_of([(kind, name) for kind, _, name in tokens])
    events = list[Event]()
    place = 0
    while place < len(tokens):
        kind, raw, name = tokens[place]
        end = place + 1
        if kind == "open" and (name in _KEPT or _PROTECTED.search(raw)):
            end = ends.get(place, len(tokens))
            end += end < len(tokens) and tokens[end][2] == name
            kind, raw = "void", "".join(raw for _, raw, _ in tokens[place:end])
        place = end
        if kind == "text":
            events += text_events(raw, unescape)
        elif name in _INLINE:
            events.append(Event(kind, raw, name=name))
        else:
            yield events
            yield raw
            events = []
        shown = [event.kind for event in events[-3:] if event.kind != "text" or event.text.strip()]
        if shown[-2:] == ["break", "break"] and events[-1].kind == "break":
            cut = len(events) - (2 if events[-2].kind == "break" else 3)
            yield events[:cut]
            yield "".join(event.raw for event in events[cut:])
            events = []
    yield events


# For each format: how to split a document into parts (joined, they equal the document), and how to
# escape the text of a translation.
_FORMATS: dict[str, tuple[Callable[[str], Iterable[Part]], Escape]] = {
    "txt": (read_lines, str),
    "html": (read_html, partial(html.escape, quote=False)),
    "srt": (read_cues, write_srt),
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
            own = [next(rest) if _has_letter(text) else (text, None) for text in part.sentences]
            is_same = tuple(text for text, _ in own) == part.sentences
            written.append(_raw(part.events) if is_same else part.render(own, joiner, self.escape))
        return "".join(written)


def read_document(text: str, kind: str, language: str) -> Document:
    """Split a document into its sentences and the structure around them.

    Args:
        text: The document. Its line breaks are kept.
        kind: One of `FORMATS`, or another file extension such as ``htm``.
        language: Language of the text, for splitting sentences. Unknown languages are split like
            English.

    Raises:
        ConfigError: The format is unknown, or the package sentencex is missing.
        DataError: The document does not have this format.
    """
    name = kind.lower().removeprefix(".")
    read, escape = chosen(_FORMATS, _ALIASES.get(name, name), "document format")
    parts = list[str | Paragraph]()
    for part in read(text):
        if isinstance(part, str):
            parts.append(part)
        elif _has_letter("".join(event.text for event in part)):
            parts.append(Paragraph.read(part, language))
        else:
            parts.append(_raw(part))
    paragraphs = (part for part in parts if isinstance(part, Paragraph))
    sentences = (sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    return Document(tuple(filter(_has_letter, sentences)), tuple(parts), escape)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _raw(events: Iterable[Event]) -> str:
    return "".join(event.raw for event in events)
