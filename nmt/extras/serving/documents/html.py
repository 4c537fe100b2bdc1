"""HTML: paragraphs between block tags, and the inline tags in them.

The parser of the standard library takes quadratic time on tags that do not end (36 s for 60 kB of
``<a``) and keeps no places, so the tags are found here, by expressions that never go back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from nmt.extras.serving.documents.lines import text_events, unescape
from nmt.extras.serving.documents.paragraph import Event, Kind

_TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\s/<>"']*+)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>"""
    r"|<[/!?a-zA-Z][^<>]*+>"  # malformed, or a declaration
)
_PROTECTED = re.compile(
    r"""\s(?:translate\s*=\s*["']?no(?=["'\s>])|class\s*=\s*["']?[^"'>]{0,999}\bnotranslate\b)""",
    re.IGNORECASE,
)


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


# Kind, raw text, and name: none for text, and for what is malformed or a declaration.
Token = tuple[Kind, str, str]


def tokenize(text: str) -> Iterator[Token]:
    """Yield tags and what stands between them."""
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


def ends_of(marks: Sequence[tuple[str, str]]) -> dict[int, int]:
    """Return for each ``open`` the place of the ``close`` that ends it, if there is one.

    Args:
        marks: Kind and name. What is not closed ends with what it stands in: with another name.
    """
    stack: list[int] = []
    waiting: Counter[str] = Counter()
    found: dict[int, int] = {}
    for place, (kind, name) in enumerate(marks):
        if kind == "open":
            stack.append(place)
            waiting[name] += 1
        while kind == "close" and waiting[name]:
            start = stack.pop()
            found[start] = place
            waiting[marks[start][1]] -= 1
            if marks[start][1] == name:
                break
    return found


def read_html(text: str) -> Iterator[str | list[Event]]:
    """Yield paragraphs and what stands between them. Two line breaks end a paragraph, too."""
    tokens = list(tokenize(text))
    ends = ends_of([(kind, name) for kind, _, name in tokens])
    events: list[Event] = []
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
