"""Markdown: blocks by lines, and the inline marks of a paragraph (CommonMark, tables, footnotes).

Lists, quotes, headings and tables are cut into paragraphs with their markers outside. Front matter,
code, addresses, images and definitions of links stay; blocks of HTML are read as HTML. Emphasis is
found by CommonMark's rules but its rule of three; what is unclear stays text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nmt.extras.serving.documents.html import (
    KEPT_INLINE,
    inline_events,
    is_inline,
    read_html,
    read_tag,
)
from nmt.extras.serving.documents.paragraph import Event
from nmt.extras.serving.documents.plain import ADDRESS, LINE, text_events, unescape

_PREFIX = re.compile(
    r"(?:[ \t]*+(?:>|(?:[-*+]|\d{1,9}[.)]|#{1,6}|\[[ xX]\])(?=[ \t])|\[\^[^\]\s]{1,64}\]:"
    r"|\[![a-zA-Z]{1,32}\]))*+[ \t]*+"
)
_QUOTE = re.compile(r"(?:[ \t]*+>)*+[ \t]*+")
_FENCE = re.compile(r"`{3,}|~{3,}|\$\$")
_RULE = re.compile(r"(?:[-*_=][ \t]*+)++\s*$")
_DEFINITION = re.compile(r"\[([^\]]{1,999})\]:")
_DELIMITER_ROW = re.compile(r"[ \t>]*+(?=[^\n]*-)(?=[^\n]*\|)[|:\- \t]++\s*$")
_INLINE = re.compile(
    r"(?P<line>\\?\r?\n(?:[ \t]*+>)*+[ \t]*+)|(?P<escape>\\[!-/:-@\[-`{-~])|(?P<code>`++)"
    rf"|(?P<note>\[\^[^\]\s]{{1,64}}\]|{ADDRESS.pattern})|(?P<bracket>!?\[)"
    r"|(?P<link>\](?:\((?:[^()\\<>\n]++|\\.|\([^()\n]*+\)|<[^<>\n]*+>)*+\)|\[[^\[\]\n]*+\])?)"
    r"|(?P<run>\*++|_++|~~)|(?P<tag><)"
)
_AUTOLINK = re.compile(r"<[a-zA-Z][\w+.-]{1,31}:[^\s<>]*+>|<[^\s<>@]++@[^\s<>]++>")
_MARKER = re.compile(r"[-+*]|#{1,6}|\d{1,9}[.)]|[-=_]{2,}|>.*|~~~.*")
_MOST_OPEN = 32
"""Openers that a closing run is compared with."""


def read_markdown(text: str) -> Iterator[str | list[Event]]:
    """Yield paragraphs and what stands between them."""
    lines = LINE.findall(text)
    labels = {match[1].casefold() for line in lines if (match := _DEFINITION.match(line.lstrip()))}
    place = _front_matter(lines)
    yield "".join(lines[:place])
    paragraph: list[str] = []
    in_list = in_table = False
    while place < len(lines):
        line = lines[place]
        prefix = _PREFIX.match(line)[0]  # type: ignore[index]  # it matches everything
        body, marker = line[len(prefix) :], prefix.strip("> \t")
        if is_blank := not body.strip():
            in_table = False
        in_table = "|" in body and (
            in_table
            or body[0] == "|"
            or bool(_DELIMITER_ROW.match("".join(lines[place + 1 : place + 2])))
        )
        is_code = not (is_blank or paragraph or in_list or marker) and line.startswith(
            ("    ", "\t")
        )
        end = place + 1 if is_code else _end_of_block(lines, place, body)
        if not (is_blank or marker or in_table or end > place) and paragraph:
            paragraph.append(line)
            place += 1
            continue
        yield from _written(paragraph, labels)
        paragraph = []
        in_list = bool(marker) or (in_list and (is_blank or line[0] in " \t"))
        place += 1
        if end >= place:
            block = "".join(lines[place - 1 : end])
            yield from read_html(block) if body[0] == "<" else [block]
            place = end
        elif is_blank:
            yield line
        elif in_table:
            yield prefix
            for piece in re.split(r"((?<!\\)\|)", body):
                yield from [piece] if piece == "|" else _written([piece], labels)
        else:
            yield prefix
            paragraph = [body]
            if "#" in marker:
                yield from _written(paragraph, labels)
                paragraph = []
    yield from _written(paragraph, labels)


def _front_matter(lines: Sequence[str]) -> int:
    """Return the number of lines of metadata at the start."""
    if lines and lines[0].lstrip("\ufeff").rstrip() in ("---", "+++"):
        for place in range(1, len(lines)):
            if lines[place].rstrip() in ("---", "+++", "..."):
                return place + 1
    return 0


def _end_of_block(lines: Sequence[str], place: int, body: str) -> int:
    """Return the place behind a block that is no paragraph; ``place``, if none begins there."""
    if fence := _FENCE.match(body):
        if body.count(fence[0]) > 1:
            return place + 1
        for end in range(place + 1, len(lines)):
            rest = _QUOTE.sub("", lines[end], count=1).rstrip()
            is_end = rest.startswith(fence[0]) and not rest.strip(fence[0][0])
            if is_end or (fence[0] == "$$" and rest.endswith("$$")):
                return end + 1
        return len(lines)
    if (tag := read_tag(body, 0)) and not (is_inline(tag) or _AUTOLINK.match(body)):
        end = place + 1
        while end < len(lines) and lines[end].strip():
            end += 1
        return end
    is_definition = _DEFINITION.match(body) and not body.startswith("[^")
    return place + bool(is_definition or (body.strip() and _RULE.match(body)))


def _written(lines: Sequence[str], labels: set[str]) -> Iterator[str | list[Event]]:
    """Yield the events of the lines of a paragraph, and the last line end."""
    text = "".join(lines)
    body = re.sub(r"(?<=\s)#+$", "", text.rstrip()) if len(lines) == 1 else text.rstrip()
    yield _Inline(body, labels).events()
    yield text[len(body) :]


@dataclass(slots=True)
class _Run:
    """Asterisks, underscores or tildes that may open or close emphasis."""

    raw: str
    opens: bool
    closes: bool
    left: int
    """How many mean nothing yet."""
    closing: list[int] = field(default_factory=list)
    opening: list[int] = field(default_factory=list)

    def events(self) -> Iterator[Event]:
        """Yield the marks: those that close, what stays text, those that open."""
        sign = self.raw[0]
        yield from (Event("close", sign * size, name=sign * size) for size in self.closing)
        if self.left:
            yield Event("text", sign * self.left, sign * self.left)
        yield from (Event("open", sign * size, name=sign * size) for size in self.opening[::-1])


class _Inline:
    """The inline marks of one paragraph."""

    def __init__(self, text: str, labels: set[str]) -> None:
        self.text, self.labels = text, labels
        self.codes: dict[int, list[int]] = {}  # places of runs of so many backticks
        for match in re.finditer("`+", text):
            self.codes.setdefault(len(match[0]), []).append(match.start())
        self.lowered = text.lower()
        self.never_closed: set[str] = set()
        self.tokens: list[Event | _Run] = []
        self.brackets: list[tuple[int, int]] = []  # place in tokens, in the text

    def events(self) -> list[Event]:
        """Return what stands in the paragraph."""
        place = 0
        while match := _INLINE.search(self.text, place):
            self.tokens += text_events(self.text[place : match.start()], unescape)
            place = getattr(self, f"_{match.lastgroup}")(match)
        self.tokens += text_events(self.text[place:], unescape)
        _pair_runs(self.tokens)
        found: list[Event] = []
        for token in self.tokens:
            found += token.events() if isinstance(token, _Run) else [token]
        return found

    def _line(self, match: re.Match[str]) -> int:
        raw = match[0]
        self.tokens.append(Event("text", raw, raw) if raw.isspace() else Event("break", raw))
        return match.end()

    def _escape(self, match: re.Match[str]) -> int:
        self.tokens.append(Event("text", match[0], match[0][1]))
        return match.end()

    def _code(self, match: re.Match[str]) -> int:
        size = len(match[0])
        places = self.codes[size]
        number = bisect_right(places, match.start())
        if number == len(places):
            self.tokens.append(Event("text", match[0], match[0]))
            return match.end()
        return self._void(match.start(), places[number] + size)

    def _void(self, start: int, end: int) -> int:
        self.tokens.append(Event("void", self.text[start:end]))
        return end

    def _note(self, match: re.Match[str]) -> int:
        return self._void(*match.span())

    def _bracket(self, match: re.Match[str]) -> int:
        self.brackets.append((len(self.tokens), match.start()))
        self.tokens.append(Event("text", match[0], match[0]))
        return match.end()

    def _link(self, match: re.Match[str]) -> int:
        """Make a link of the last bracket; an image, and one named by its text, stays whole."""
        raw, end = match[0], match.end()
        if self.brackets:
            opener, start = self.brackets.pop()
            is_image = self.text[start] == "!"
            label = self.text[start : match.start()].lstrip("![").casefold()
            if label in self.labels and raw in ("]", "][]"):
                is_image = True
            elif raw == "]":
                opener = -1
            if is_image and opener >= 0:
                del self.tokens[opener:]
                return self._void(start, end)
            if opener >= 0:
                self.tokens[opener] = Event("open", "[", name="[")
                self.tokens.append(Event("close", raw, name="["))
                return end
        self.tokens.append(Event("text", "]", "]"))
        return match.start() + 1

    def _run(self, match: re.Match[str]) -> int:
        start, end = match.span()
        before, after = self.text[start - 1 : start] if start else "", self.text[end : end + 1]
        left, right = (_is_flanking(*pair) for pair in ((before, after), (after, before)))
        opens, closes = left, right
        if match[0][0] == "_":  # not in words
            opens = left and not before.isalnum()
            closes = right and not after.isalnum()
        self.tokens.append(_Run(match[0], opens, closes, end - start))
        return end

    def _tag(self, match: re.Match[str]) -> int:
        start = match.start()
        if link := _AUTOLINK.match(self.text, start):
            return self._void(start, link.end())
        tag = read_tag(self.text, start)
        closing = "-->" if self.text.startswith("<!--", start) else ""
        if tag and tag.kind == "open" and tag.name in KEPT_INLINE:
            closing = f"</{tag.name}>"
        if closing and closing not in self.never_closed:
            end = self.lowered.find(closing, start)
            if end >= 0 and len(self.lowered) == len(self.text):
                return self._void(start, end + len(closing))
            self.never_closed.add(closing)
        if tag is None or not is_inline(tag) or closing:
            self.tokens.append(Event("text", "<", "<"))
            return start + 1
        self.tokens += inline_events(tag)
        return start + len(tag.raw)


def _is_flanking(outside: str, inside: str) -> bool:
    """Whether a run between these two characters may open emphasis, as CommonMark says."""
    if not inside or inside.isspace():
        return False
    return inside.isalnum() or not outside or not outside.isalnum()


def _opener(openers: list[_Run | None], sign: str) -> _Run | None:
    """Return the last of ``openers`` of a sign, behind which all are dropped, if there is one."""
    for place in range(len(openers) - 1, max(-1, len(openers) - 1 - _MOST_OPEN), -1):
        opener = openers[place]
        if opener is None:
            return None
        if opener.raw[0] == sign:
            del openers[place + 1 :]
            return opener
    return None


def _pair_runs(tokens: Sequence[Event | _Run]) -> None:
    """Give runs their marks: a closing run belongs to the nearest opening one of its sign."""
    openers: list[_Run | None] = []  # None: a link begins
    for token in tokens:
        if isinstance(token, Event):
            if token.name == "[" and token.kind == "open":
                openers.append(None)
            elif token.name == "[":
                while openers and openers.pop() is not None:
                    pass
            continue
        while token.left and token.closes and (opener := _opener(openers, token.raw[0])):
            size = min(2, opener.left, token.left)
            opener.left -= size
            token.left -= size
            opener.opening.append(size)
            token.closing.append(size)
            if not opener.left:
                openers.pop()
        if token.left and token.opens:
            openers.append(token)


def write_markdown(text: str, starts_line: bool) -> str:
    r"""Write text of Markdown: what would be a mark gets a backslash.

    >>> write_markdown("2*3 a_b <b>", False), write_markdown("1.", True)
    ('2\\*3 a_b &lt;b>', '1\\.')
    """
    if starts_line and _MARKER.fullmatch(text):
        return "\\>" + text[1:] if text[0] == ">" else f"{text[:-1]}\\{text[-1]}"
    text = re.sub(r"[\\`*\[\]|]|~~|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
