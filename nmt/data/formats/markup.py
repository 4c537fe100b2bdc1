"""XML and SGML as a stream: the elements with certain tags, one after another.

Only one element is in memory. Files may be damaged or hostile: an element that cannot be parsed is
left out and reported, entities are never expanded, and nothing outside of the file is read.

The start and the end of each element are found in the text. Then one parser reads the element, and
another one the text around all elements, with a blank placeholder for each of them. So the damage
in an element is lost with it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from lxml import etree

from nmt.data.formats.pair import BadPair
from nmt.data.formats.text import TextFile
from nmt.errors import DataError
from nmt.files.encoding import UTF8, open_text
from nmt.files.lines import read_pieces

XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_PIECE_BYTES = 1 << 20
# Characters until the end of an element: the limit of libxml2 for texts, comments and attributes.
_MOST_CHARACTERS = 10_000_000
# The tag of the root, after declarations, comments and instructions. They are an atomic group, so
# that the time does not explode where they have no end.
_ROOT = re.compile(
    r"(?>(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)*)<(?:[\w.-]+:)?([\w.-]+)",
    re.DOTALL | re.IGNORECASE,
)
# What looks like a tag in a comment, a section or an instruction is none. Each of these, and a tag,
# may be cut at the end of the text. So a quote that does not end there may end later, unless
# another tag follows.
_TOKEN = (
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<\?.*?(?:\?>|\Z)|<[^<>]*\Z"
    r"|<(?:[\w.-]+:)?(?P<start>{names})(?=[\s/>])"
    r"(?:[^<>\"']+|\"[^\"<]*\"|'[^'<]*'|[\"'](?=[^<]*<))*+>(?P<empty>(?<=/>))?"
    r"|(?P<end></(?:[\w.-]+:)?(?:{names})\s*>)"
)
_UNREADABLE = re.compile("[\0\udc80-\udcff]")  # NUL, and what `surrogateescape` makes of bad bytes
# Tags with codes of the original file, such as `<bpt>&lt;b&gt;</bpt>`, in TMX and XLIFF. A text
# inside of a code, `<sub>`, is not a part of the sentence.
_CODES = ("{*}bpt", "{*}ept", "{*}ph", "{*}it", "{*}ut")
_OPTIONS = {"remove_comments": True, "remove_pis": True, "no_network": True, "huge_tree": False}
_PLACE = re.compile(r",? line \d+(, column \d+)?")  # in messages of libxml2
_FIX = "Export the file again, or repair it; `xmllint --noout FILE` lists the errors of XML."


class _Chunk(NamedTuple):
    """An element and the text before it. At the end of the file, the element is empty."""

    before: str
    element: str
    is_complete: bool  # whether the element has an end


def root_name(start: str) -> str:
    """Return the tag of the root in lower case, without a prefix; empty if this is not markup.

    Args:
        start: The beginning of a text.
    """
    match = _ROOT.match(start.removeprefix("\ufeff"))
    return match[1].lower() if match else ""


def text_of(element: Any) -> str:
    """Return the text of an element, from which the codes are removed."""
    etree.strip_elements(element, *_CODES, with_tail=False)
    return "".join(element.itertext())


def read_elements(
    file: TextFile, tags: Sequence[str], *, is_html: bool = False
) -> Iterator[tuple[int, Any] | BadPair]:
    """Yield the line of each element, and the element; or why it cannot be read.

    An element and the attributes of its ancestors can be read until the next one is requested.

    Args:
        file: The file.
        tags: Names without namespace. Such elements do not contain each other.
        is_html: Parse as HTML: names in any case, attributes without quotes, lone ampersands.

    Raises:
        DataError: The markup is wrong outside of these elements, declares entities or is too large;
            or the file is damaged, is not text, or ends too early.
    """
    parser: Any  # of an element
    outside: Any  # parser of the text around all elements
    if is_html:
        parser = etree.HTMLParser(**_OPTIONS)
        outside = etree.HTMLPullParser(["end"], tag="place", **_OPTIONS)
    else:
        # Warnings, such as a prefix that is not declared, do not matter.
        parser = etree.XMLParser(recover=True, resolve_entities=False, **_OPTIONS)
        # The text is UTF-8, whatever the file declares.
        outside = etree.XMLPullParser(
            ["end"], tag="{*}place", encoding="utf-8", resolve_entities=False, **_OPTIONS
        )
    any_tag = [f"{{*}}{tag}" for tag in tags]
    line = 1
    for before, text, is_complete in _chunks(file, tags):
        bad = _bad_characters(file, before + text, line)
        line += before.count("\n")
        if bad is not None and bad.line < line:
            bad = None  # not in the element
        with suppress(etree.XMLSyntaxError):  # it is in the log
            outside.feed(_UNREADABLE.sub("\ufffd", before))
            if text:
                line_feeds = "\n" * text.count("\n")  # so that later lines have their numbers
                outside.feed(f"<place> {line_feeds}</place>")
        place = next((element for _, element in outside.read_events()), None)
        if place is None:  # at the end of the file, or of what can be read
            with suppress(etree.XMLSyntaxError):
                outside.close()
            for error in _fatal_errors(outside.feed_error_log):
                raise _error(file, error.line, error.message)
            if text:
                raise _error(file, line, f"<{tags[0]}> is in a wrong place")
            return
        declarations = place.getroottree().docinfo.internalDTD
        if declarations is not None and any(declarations.iterentities()):
            # They may be large, or in other files.
            raise _error(file, line, "the file declares entities, which nmt does not expand")
        # With the namespaces around the element.
        opened = etree.tostring(place, encoding="unicode", with_tail=False)
        start, _, end = opened.partition(">")
        with suppress(etree.XMLSyntaxError):
            root = etree.fromstring(f"{start}>{text}{end}", parser)
        is_damaged = not is_complete or any(_fatal_errors(parser.error_log))
        if bad is not None:
            yield bad._replace(line=line)
        elif is_damaged:
            yield BadPair("syntax", line, text)
        else:
            element = next(root.iter(*any_tag))
            place.append(element)
            yield line, element
        _release(place)
        line += text.count("\n")


def _chunks(file: TextFile, tags: Sequence[str]) -> Iterator[_Chunk]:
    """Yield each element with the text before it, and last the text after all elements.

    Raises:
        DataError: An element is too long, or the file ends in one.
    """
    tokens = re.compile(_TOKEN.format(names="|".join(tags)), re.DOTALL | re.IGNORECASE)
    line = 1  # of the text
    text = ""
    position = 0  # of the first token that has not been read
    start: int | None = None  # of the element
    with open_text(file.path, file.encoding) as stream:
        pieces = read_pieces(stream, file.name, _PIECE_BYTES)
        for piece in chain(codecs.iterdecode(pieces, UTF8, "surrogateescape"), [""]):
            text += piece
            chunk_start = 0
            for token in tokens.finditer(text, position):
                if piece and token.end() == len(text):
                    break  # it may be longer
                position = token.end()
                kind = token.lastgroup
                if kind in ("start", "empty"):
                    if start is not None:  # the element before this one has no end
                        yield _Chunk(text[chunk_start:start], text[start : token.start()], False)
                        chunk_start = token.start()
                    start = token.start()
                if kind in ("end", "empty") and start is not None:
                    yield _Chunk(text[chunk_start:start], text[start:position], True)
                    chunk_start = position
                    start = None
            line += text.count("\n", 0, chunk_start)
            text = text[chunk_start:]
            position = max(position - chunk_start, 0)
            if start is not None:
                start -= chunk_start
            if len(text) > _MOST_CHARACTERS:
                problem = f"no <{tags[0]}> ends within {_MOST_CHARACTERS:,} characters"
                raise _error(file, line, problem)
    if start is not None:
        line += text.count("\n", 0, start)
        raise _error(file, line, f"the file ends before the end of <{tags[0]}>")
    yield _Chunk(text, "", True)


def _bad_characters(file: TextFile, text: str, line: int) -> BadPair | None:
    """Return why the characters of a text cannot be read, for the first line that has bad ones.

    Raises:
        DataError: A line is not text, and the options do not say to skip it.
    """
    if not _UNREADABLE.search(text):
        return None
    lines = text.encode(UTF8, "surrogateescape").split(b"\n")
    return next((item for item in file.texts(lines, line) if isinstance(item, BadPair)), None)


def _fatal_errors(log: Any) -> Iterator[Any]:
    """Yield the errors in the log of a parser after which it has lost text."""
    return (entry for entry in log if entry.level == etree.ErrorLevels.FATAL)


def _error(file: TextFile, line: int, problem: str) -> DataError:
    problem = _PLACE.sub("", problem).strip()  # for some problems, it is that of another tag
    return DataError(f"{file.name}, line {line:,}: {problem}.", fix=_FIX)


def _release(element: Any) -> None:
    """Free the memory of an element, and of all elements that end before it."""
    element.clear()
    for each in chain([element], element.iterancestors()):
        parent = each.getparent()
        while each.getprevious() is not None:
            del parent[0]
