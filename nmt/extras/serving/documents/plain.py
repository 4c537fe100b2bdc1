"""Plain text and subtitles (SubRip, WebVTT): lines and cues."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence

from nmt.extras.serving.documents.paragraph import Event, Kind

ADDRESS = re.compile(
    r"""\b(?:https?://|www\.)[^\s<>"']*[^\s<>"'.,;:!?)\]}*_~]"""
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{2,24})+"
)
LINE = re.compile(r"[^\n]*\n|[^\n]+")
_TIMING = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s+-->\s")
_CUE_TAG = re.compile(r"<(/?)([a-zA-Z]++)[^<>]*+>|<[\d:.]++>|\{\\[^{}]*+\}")
_TURN = re.compile(r"(?:\s|<[^<>]*+>|\{\\[^{}]*+\})*+[-\u2013\u2014](?=\s|\w)\s*")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});?")


def unescape(text: str) -> str:
    """Return text with entities as characters.

    >>> unescape("&Auml;&amp;&#66;&bla;")
    'Ä&B&bla;'
    """
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def text_events(raw: str, decode: Callable[[str], str] = str) -> Iterator[Event]:
    """Yield text, and web and mail addresses, which stay."""
    place = 0
    for match in ADDRESS.finditer(raw):
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
    for piece in re.findall(r"[\n\t]+|[^\n\t]+", text):
        yield piece if piece[0] in "\n\t" else [*text_events(piece)]


def read_cues(text: str, decode: Callable[[str], str] = str) -> Iterator[str | list[Event]]:
    """Yield the texts of cues, and all that stands between them.

    The lines of a cue are one paragraph; a line that begins with a dash, another speaker, is one of
    its own.
    """
    lines: list[str] = []
    in_cue = False
    for line in LINE.findall(text):
        if _TIMING.match(line) or not line.strip():
            yield from _cue(lines, decode)
            lines, in_cue = [], "-->" in line
            yield line
        elif not in_cue:
            yield line
        else:
            if turn := _TURN.match(line):
                yield from _cue(lines, decode)
                lines, line = [], line[turn.end() :]
                yield turn[0]
            lines.append(line)
    yield from _cue(lines, decode)


def _cue(lines: Sequence[str], decode: Callable[[str], str]) -> Iterator[str | list[Event]]:
    """Yield the events of lines, and the last line end."""
    text = "".join(lines)
    body = text.rstrip("\r\n")
    if body:
        yield [*_cue_events(body, decode)]
    if body != text:
        yield text[len(body) :]


def _cue_events(text: str, decode: Callable[[str], str]) -> Iterator[Event]:
    place = 0
    closed = {match[2] for match in _CUE_TAG.finditer(text) if match[1]}
    for match in _CUE_TAG.finditer(text):
        yield from text_events(text[place : match.start()], decode)
        place, name = match.end(), match[2] or ""
        # <v Name> may go to the end of the cue without being closed.
        kind: Kind = "close" if match[1] else "open" if name in closed else "void"
        yield Event(kind, match[0], name=name)
    yield from text_events(text[place:], decode)


def write_text(text: str, starts_line: bool) -> str:  # noqa: ARG001 - all places are alike
    """Write plain text."""
    return text


def write_markup(text: str, starts_line: bool) -> str:  # noqa: ARG001
    """Write text of WebVTT or HTML."""
    return html.escape(text, quote=False)


def write_srt(text: str, starts_line: bool) -> str:  # noqa: ARG001
    """Write text of SubRip, which has no escapes: what looks like a tag gets another bracket."""
    return re.sub(r"<(?=[/a-zA-Z])", "\u2039", text)
