"""Plain text, by lines, and SubRip subtitles, by cues."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

import srt

from nmt.errors import DataError
from nmt.extras.serving.documents.paragraph import Event, Kind

_ADDRESS = re.compile(
    r"""\b(?:https?://|www\.)[^\s<>"']*[^\s<>"'.,;:!?)\]}*_~]"""
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{2,24})+"
)
# The expressions of the package srt take cubic time on long numbers and square time on long gaps.
_NO_SUBRIP = re.compile(r"\d{13}|\s{100}")
_CUE_TAG = re.compile(r"<(/?)([a-zA-Z]++)[^<>]*+>|\{\\[^{}]*+\}")
_TURN = re.compile(r"(?:\s|<[^<>]*+>|\{\\[^{}]*+\})*+[-\u2013\u2014](?=\s|\w)\s*")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});?")


def unescape(text: str) -> str:
    """Return text with entities as characters; `html.unescape` alone fails on long numbers.

    >>> unescape("&Auml;&amp;&#66;&bla;")
    'Ä&B&bla;'
    """
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def text_events(raw: str, decode: Callable[[str], str] = str) -> Iterator[Event]:
    """Yield text, and web and mail addresses, which stay."""
    place = 0
    for match in _ADDRESS.finditer(raw):
        if before := raw[place : match.start()]:
            yield Event("text", before, decode(before))
        yield Event("void", match[0])
        place = match.end()
    if rest := raw[place:]:
        yield Event("text", rest, decode(rest))


def read_lines(text: str) -> Iterator[str | list[Event]]:
    r"""Yield the lines of plain text and the borders between them; a tab is one, too.

    >>> [part if isinstance(part, str) else part[0].text for part in read_lines("A\n\nB\tC")]
    ['A', '\n\n', 'B', '\t', 'C']
    """
    for part in re.findall(r"[\n\t]+|[^\n\t]+", text):
        yield part if part[0] in "\n\t" else [*text_events(part)]


def read_cues(text: str) -> Iterator[str | list[Event]]:
    """Yield the texts of cues, and what stands between them.

    The lines of a cue are one paragraph; a line that begins with a dash, another speaker, is one of
    its own.

    Raises:
        DataError: This is not SubRip.
    """
    try:
        cues = [] if _NO_SUBRIP.search(text) else [*srt.parse(text)]
    except (srt.SRTParseError, ValueError, OverflowError):
        cues = []
    if text.strip() and not cues:
        raise DataError(
            "The document is not SubRip.", fix="Send subtitles as .srt, or another format."
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
    """Yield the events of lines, and the last line end."""
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
    """Write text of SubRip, which has no escapes: what looks like a tag gets another bracket."""
    return re.sub(r"<(?![^/a-zA-Z])", "\u2039", text)
