"""HTML: paragraphs between block tags, and the inline tags in them.

The parser of the standard library takes quadratic time on tags that do not end (36 s for 60 kB of
``<a``) and keeps no places, so the tags are found here, by expressions that never go back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nmt.extras.serving.documents.paragraph import Event
from nmt.extras.serving.documents.plain import text_events, unescape

_TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\s/<>"']*+)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>"""
    r"|<[/!?a-zA-Z][^<>]*+>"  # malformed, or a declaration
)
_ATTRIBUTE = re.compile(r"""[\s/]([^\s"'<>/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+)""")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INLINE = _names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q rb rp rt rtc "
    "ruby s small span strike strong sub sup time tt u"
)
KEPT_INLINE = _names("code kbd samp var svg math picture object script style")
_KEPT = KEPT_INLINE | _names(
    "pre textarea template iframe video audio canvas xmp noembed noframes listing"
)
_RAW_TEXT = _names("script style textarea iframe xmp noembed noframes")
VOID_INLINE = _names("br img input wbr")
_VOID = VOID_INLINE | _names("area base col embed hr link meta param source track")


class Token(NamedTuple):
    """A tag, or what stands between two."""

    kind: str
    """``text``, ``open``, ``close``, ``void``, ``comment`` or ``other``."""
    raw: str
    name: str = ""


def read_tag(text: str, start: int) -> Token | None:
    """Return the tag at a place, if there is one."""
    if (match := _TAG.match(text, start)) is None:
        return None
    name = (match[2] or "").lower()
    kind = "close" if match[1] else "void" if name in _VOID else "open"
    return Token(kind if name else "other", match[0], name)


def tokenize(text: str) -> Iterator[Token]:
    """Yield tags and what stands between them."""
    place = text_start = 0
    last_comment = text.rfind("-->")
    while (start := text.find("<", place)) >= 0:
        if text.startswith("<!--", start) and start < last_comment:
            token = Token("comment", text[start : text.index("-->", start) + 3])
        elif found := read_tag(text, start):
            token = found
        else:
            place = start + 1
            continue
        if start > text_start:
            yield Token("text", text[text_start:start])
        yield token
        place = text_start = start + len(token.raw)
        if token.kind == "open" and token.name in _RAW_TEXT:
            end = re.compile(rf"</{token.name}(?=[\s/>])", re.IGNORECASE).search(text, place)
            text_start = end.start() if end else len(text)
            if text_start > place:
                yield Token("other", text[place:text_start])
            place = text_start
    if text_start < len(text):
        yield Token("text", text[text_start:])


def is_inline(token: Token) -> bool:
    """Whether a token is part of a paragraph."""
    names = INLINE | KEPT_INLINE | VOID_INLINE
    return token.kind in ("text", "comment") or token.name in names


def is_protected(tag: str) -> bool:
    """Whether a tag asks that its content stays: ``translate="no"`` or the class ``notranslate``.

    >>> is_protected('<b translate=no>'), is_protected('<b title="translate=no">')
    (True, False)
    """
    lowered = tag.lower()
    if "translate" not in lowered:
        return False
    values = {name: value.strip("\"'") for name, value in _ATTRIBUTE.findall(lowered)}
    return values.get("translate") == "no" or "notranslate" in values.get("class", "").split()


def _ends(tokens: list[Token]) -> dict[int, int]:
    """Return the place behind each element that is open: its end included, if it has one."""
    stack: list[int] = []
    waiting: dict[str, int] = {}
    found: dict[int, int] = {}
    for place, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(place)
            waiting[token.name] = waiting.get(token.name, 0) + 1
        elif token.kind == "close" and waiting.get(token.name):
            is_found = False
            while not is_found:
                start = stack.pop()
                waiting[tokens[start].name] -= 1
                is_found = tokens[start].name == token.name
                found[start] = place + is_found
    return found


def read_html(text: str) -> Iterator[str | list[Event]]:
    """Yield paragraphs and what stands between them. Two line breaks end a paragraph, too."""
    tokens = list(tokenize(text))
    ends = _ends(tokens)
    events: list[Event] = []
    place = 0
    while place < len(tokens):
        token, end = tokens[place], place + 1
        if token.kind == "open" and (token.name in _KEPT or is_protected(token.raw)):
            end = ends.get(place, len(tokens))
            raw = "".join(each.raw for each in tokens[place:end])
            token = Token("void", raw, token.name)
        place, raw = end, token.raw
        if is_inline(token):
            events += inline_events(token)
            cut = _end_of_text(events)
            raw = "".join(event.raw for event in events[cut:])
            if cut == len(events):
                continue
            del events[cut:]
        yield events
        yield raw
        events = []
    yield events


def inline_events(token: Token) -> Iterator[Event]:
    """Yield what a token is in a paragraph."""
    kind, raw, name = token
    if kind == "text":
        yield from text_events(raw, unescape)
    elif kind in ("open", "close"):
        yield Event("open" if kind == "open" else "close", raw, name=name)
    else:
        yield Event("break" if name == "br" else "void", raw)


def _end_of_text(events: list[Event]) -> int:
    """Return the place of the first of two line breaks at the end; the end, if there are none."""
    last = [
        event.kind if event.text.strip() or event.kind != "text" else "" for event in events[-3:]
    ]
    for size in (2, 3):
        if last[-size:] in (["break"] * 2, ["break", "", "break"]):
            return len(events) - size
    return len(events)
