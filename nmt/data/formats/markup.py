"""XML and SGML as a stream: the elements with certain tags, one after another.

Only one element is in memory. Files may be damaged or hostile: an element that cannot be parsed is
left out and reported, entities are never expanded, and nothing outside of the file is read.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from lxml import etree

from nmt.data.formats.layout import Sample
from nmt.data.formats.pair import EXCERPT, BadPair, BadReason
from nmt.errors import DataError
from nmt.files.encoding import open_text
from nmt.files.lines import decode_line, read_pieces

XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_PIECE_BYTES = 1 << 16
# Characters until the end of an element: the limit of libxml2 for texts, comments and attributes.
_MOST_CHARACTERS = 10_000_000
_MOST_WARNINGS = 90  # in the log of a parser. libxml2 is silent about errors after 100.
# The tag of the root, after declarations, comments and instructions. They are an atomic group, so
# that the time does not explode where they have no end.
_ROOT = re.compile(
    r"(?>(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)*)<(?:[\w.-]+:)?([\w.-]+)",
    re.DOTALL | re.IGNORECASE,
)
# An ampersand after which the parser waits for a semicolon, however late it comes.
_LONE_AMPERSAND = re.compile(r"&(?!#?\w+;)")
_UNREADABLE = re.compile("[\0\udc80-\udcff]")  # NUL, and what `surrogateescape` makes of bad bytes
# Tags with codes of the original file, such as `<bpt>&lt;b&gt;</bpt>`, in TMX and XLIFF. A text
# inside of a code, `<sub>`, is not a part of the sentence.
_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_EVENTS = ("start", "end")
_OPTIONS = {"remove_comments": True, "remove_pis": True, "no_network": True, "huge_tree": False}
_PLACE = re.compile(r",? line \d+(, column \d+)?")  # in messages of libxml2
_FIX = "Export the file again, or repair it; `xmllint --noout FILE` lists the errors of XML."


@dataclass(frozen=True)
class TextSource:
    """A text that can be read several times: a file, or the beginning of one.

    Args:
        name: Name of the file in messages.
        open_stream: Opens the text in UTF-8.
        on_bad_utf8: Whether to stop at bytes that are not text.
        is_cut: Whether the text may end anywhere.
    """

    name: str
    open_stream: Callable[[], IO[bytes]]
    on_bad_utf8: Literal["error", "skip"] = "skip"
    is_cut: bool = False


def source_of_file(
    path: Path, encoding: str | None, on_bad_utf8: Literal["error", "skip"]
) -> TextSource:
    """Return the text of a file."""
    return TextSource(str(path), lambda: open_text(path, encoding), on_bad_utf8)


def source_of_sample(sample: Sample) -> TextSource:
    """Return the text of the beginning of a file."""
    return TextSource(str(sample.path), lambda: io.BytesIO(sample.start), is_cut=True)


def root_name(start: str) -> str:
    """Return the tag of the root in lower case, without a prefix; empty if this is not markup.

    Args:
        start: The beginning of a text.
    """
    match = _ROOT.match(start.removeprefix("\ufeff"))
    return match[1].lower() if match else ""


def text_of(element: Any) -> str:
    """Return the text of an element without the codes in it."""
    parts = [element.text or ""]
    for child in element:
        if local_name(child) not in _CODES:
            parts.append(text_of(child))
        parts.append(child.tail or "")
    return "".join(parts)


def local_name(element: Any) -> str:
    """Return the tag of an element without its namespace."""
    return element.tag.rpartition("}")[2]


class _Chunk(NamedTuple):
    """A part of a text that ends with a line, or with an element."""

    line: int
    text: str
    ends_element: bool


@dataclass
class _Progress:
    """What is known about the element that is being read.

    Args:
        element: The element; None before its start.
        line: Line of its start.
        num_characters: Since the end of the previous element.
        bad: Why it cannot be read.
        waits_at: The text in which the parser may be waiting for a semicolon.
        is_lost: Whether the parser has stopped in it.
    """

    element: Any = None
    line: int = 0
    num_characters: int = 0
    bad: BadPair | None = None
    waits_at: str = ""
    is_lost: bool = False

    def note(self, reason: BadReason, text: str) -> None:
        """Keep the first reason why the element cannot be read."""
        self.bad = self.bad or BadPair(reason, self.line, text.strip()[:EXCERPT])

    def outcome(self) -> tuple[int, Any] | BadPair:
        """Return the line and the element, or why it cannot be read."""
        if self.bad is not None:
            return self.bad._replace(line=self.line)
        return self.line, self.element


class ElementReader:
    """Reads the elements with certain tags.

    After an element that is not well-formed, or many warnings, another parser continues.

    Args:
        source: The text.
        tags: Names without namespace. Such elements do not contain each other.
        is_html: Parse as HTML: names in any case, attributes without quotes, lone ampersands.
    """

    def __init__(self, source: TextSource, tags: Sequence[str], *, is_html: bool = False) -> None:
        self._source = source
        self._tags = tags
        self._is_html = is_html
        self._now = _Progress()
        self._parser = self._new_parser()
        self._first_line = 1  # of the text of the parser

    def read(self) -> Iterator[tuple[int, Any] | BadPair]:
        """Yield the line of each element, and the element; or why it cannot be read.

        An element and the attributes of its ancestors can be read until the next one is requested.

        Raises:
            DataError: The markup is wrong outside of these elements, declares entities or is too
                large; or the file is damaged, is not text, or ends too early.
        """
        for chunk in _chunks(self._source, self._tags):
            text = self._readable(chunk)
            if not self._now.is_lost:
                yield from self._parse(chunk, text)
            if not chunk.ends_element or self._now.element is None:
                continue
            if self._now.is_lost or self._now.waits_at:
                self._now.note("syntax", self._now.waits_at)
                yield self._now.outcome()
                self._restart(chunk.line)
        if not self._source.is_cut:
            self._close()

    def _readable(self, chunk: _Chunk) -> str:
        """Return a chunk as the parser can read it; note why the element cannot be read.

        Raises:
            DataError: The element is too long, or bytes are not text.
        """
        text = chunk.text
        now = self._now
        if now.element is None:  # what was noted is outside of the elements
            now.bad = None
            now.waits_at = ""
        now.num_characters += len(text)
        if now.num_characters > _MOST_CHARACTERS:
            problem = f"no <{self._tags[0]}> ends within {_MOST_CHARACTERS:,} characters"
            raise self._error(problem, now.line or chunk.line)
        if unreadable := _UNREADABLE.search(text):
            is_nul = unreadable[0] == "\0"
            if not is_nul and self._source.on_bad_utf8 == "error":
                line = text.encode("utf-8", "surrogateescape")
                decode_line(line, self._source.name, chunk.line)  # raises the error
            text = _UNREADABLE.sub("\ufffd", text)
            now.note("nul" if is_nul else "bad_utf8", text)
        if _LONE_AMPERSAND.search(text):
            now.waits_at = text
        return text

    def _parse(self, chunk: _Chunk, text: str) -> Iterator[tuple[int, Any] | BadPair]:
        """Yield the elements that end in a chunk.

        Raises:
            DataError: The parser has found an error outside of the elements.
        """
        with suppress(etree.XMLSyntaxError):  # it is in the log, as all other errors are
            self._parser.feed(text)
        error = self._first_error()
        for event, element in self._parser.read_events():
            if event == "start":
                if self._now.element is not None:  # it has no end
                    self._now.note("syntax", text)
                    yield self._now.outcome()
                    self._now = _Progress()
                self._reject_entities(element, chunk.line)
                self._now.element = element
                self._now.line = chunk.line
            elif element is self._now.element and error is None:
                yield self._now.outcome()
                _release(element)
                if len(self._parser.feed_error_log) > _MOST_WARNINGS // 10:
                    self._restart(chunk.line)
                self._now = _Progress()
        if error is not None:
            line = self._first_line + error.line - 1
            if self._now.element is None or line < self._now.line:
                self._raise(error)
            self._now.note("syntax", text)
            self._now.is_lost = True

    def _first_error(self) -> Any:
        """Return what made the parser lose text, from its log; None if it has read all text.

        Warnings, such as a prefix that is not declared, do not matter unless they are many.
        """
        log = self._parser.feed_error_log
        for entry in log:
            is_fatal = entry.level == etree.ErrorLevels.FATAL
            is_entity = entry.type == etree.ErrorTypes.WAR_UNDECLARED_ENTITY
            if is_fatal or is_entity or len(log) > _MOST_WARNINGS:
                return entry
        return None

    def _reject_entities(self, element: Any, line: int) -> None:
        """Raise a DataError if the file declares entities, which may be large or outside files."""
        declarations = element.getroottree().docinfo.internalDTD
        if declarations is not None and any(declarations.iterentities()):
            raise self._error("the file declares entities, which nmt does not expand", line)

    def _restart(self, line: int) -> None:
        """Continue after the element with another parser, which reads the ancestors again.

        Raises:
            DataError: The ancestors are not well-formed.
        """
        opening_tags = _opening_tags(self._now.element)
        self._now = _Progress()
        self._parser = self._new_parser()
        self._parser.feed(opening_tags)
        self._first_line = line
        self._raise(self._first_error())

    def _close(self) -> None:
        """Raise a DataError if the file ends too early."""
        if self._now.element is not None:
            problem = f"the file ends before the end of <{local_name(self._now.element)}>"
            raise self._error(problem, self._now.line)
        with suppress(etree.XMLSyntaxError):  # it is in the log
            self._parser.close()
        self._raise(self._first_error())

    def _raise(self, error: Any) -> None:
        """Raise an error of the parser, if there is one."""
        if error is not None:
            raise self._error(error.message, self._first_line + error.line - 1)

    def _error(self, problem: str, line: int) -> DataError:
        problem = _PLACE.sub("", problem).strip()  # lines of the parser are not those of the file
        return DataError(f"{self._source.name}, line {line:,}: {problem}.", fix=_FIX)

    def _new_parser(self) -> Any:
        if self._is_html:
            return etree.HTMLPullParser(_EVENTS, tag=self._tags, **_OPTIONS)
        tags = [f"{{*}}{tag}" for tag in self._tags]
        # The text is UTF-8, whatever the file declares.
        return etree.XMLPullParser(
            _EVENTS, tag=tags, encoding="utf-8", resolve_entities=False, **_OPTIONS
        )


def _chunks(source: TextSource, tags: Sequence[str]) -> Iterator[_Chunk]:
    """Yield a text in chunks: at most a line, and at most one end of an element in each."""
    names = "|".join(tags)
    end_of_chunk = re.compile(rf"\n|</(?:[\w.-]+:)?(?:{names})\s*>", re.IGNORECASE)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    line = 1
    rest = ""
    with source.open_stream() as stream:
        for piece in chain(read_pieces(stream, source.name, _PIECE_BYTES), [b""]):
            text = rest + decoder.decode(piece, final=not piece)
            start = 0
            for end in end_of_chunk.finditer(text):
                is_line = end[0] == "\n"
                yield _Chunk(line, text[start : end.end()], not is_line)
                line += is_line
                start = end.end()
            rest = text[start:]
            if rest and (len(rest) > _PIECE_BYTES or not piece):
                yield _Chunk(line, rest, False)
                rest = ""


def _opening_tags(element: Any) -> str:
    """Return the start tags of all elements around an element."""
    tags = []
    for ancestor in element.iterancestors():
        tag, end, _ = etree.tostring(ancestor, encoding="unicode").partition(">")
        tags.append(tag + end)
    return "".join(reversed(tags))


def _release(element: Any) -> None:
    """Free the memory of an element, and of all elements that end before it."""
    element.clear()
    for each in chain([element], element.iterancestors()):
        parent = each.getparent()
        while each.getprevious() is not None:
            del parent[0]
