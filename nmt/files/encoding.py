"""Encodings of text files: finding them out, and reading text in any of them as UTF-8."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from nmt.errors import ConfigError, DataError
from nmt.files.archive import PieceStream, place_in_archive
from nmt.files.lines import first_bytes, open_binary, read_pieces

START_BYTES = 1 << 20  # of a file, from which its encoding and its format are found out
# Byte order marks: a longer one may begin with a shorter one, so it comes first.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_WIDE_SHARE = 0.25  # Share of NUL bytes in UTF-16, if most characters are Latin; half of the bytes.
_WIDE = ("utf-16", "utf-32")
_XML_ENCODING = re.compile(rb"\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.IGNORECASE)
# The header of a gettext catalogue, after comments; and a line of it.
_HEADER = re.compile(rb'(\s*#.*\n)*+\s*msgid ""\s+msgstr ""')
_CHARSET = re.compile(rb'\n"Content-Type:[^"]*charset=([\w.:-]+)', re.IGNORECASE)
UTF8 = "utf-8"
_SIMILAR_CHAOS = 0.02  # of two encodings in which a text is about as likely
_WESTERN_EUROPEAN = "cp1252"
# Other encodings of Latin letters, and the only languages that need them.
_LANGUAGES = {
    "cp1250": ("Czech", "Slovak", "Polish", "Hungarian", "Croatian", "Slovene", "Romanian"),
    "cp1254": ("Turkish",),
    "cp1258": ("Vietnamese",),
}
# Rare encodings that resemble frequent ones, and that iconv has by other names or not at all.
_RARE = (
    "mac_greek mac_iceland mac_latin2 mac_roman mac_turkish cp720 cp1006 "
    "euc_jis_2004 euc_jisx0213 shift_jis_2004 shift_jisx0213"
)
_BAD_BYTES = "nmt-bad-bytes"  # Name of the handler of bad bytes.
_ESCAPED = 0xDC00  # The lone surrogate of a byte, minus the byte.


def standard_encoding(name: str) -> str:
    """Return the standard name of an encoding that Python knows.

    Raises:
        ConfigError: The name is unknown, or is not an encoding of text.

    >>> standard_encoding("Latin-1"), standard_encoding("UTF8")
    ('iso8859-1', 'utf-8')
    """
    try:
        encoding = codecs.lookup(name)
        encoding.decode(b"")
        "".encode(name)  # `rot13` and others that are no encodings of text raise an error
    except (LookupError, TypeError) as error:
        raise ConfigError(
            f"There is no encoding {name!r}.",
            fix="Use a name that Python knows, such as utf-8, utf-16, latin-1 or shift_jis.",
        ) from error
    return encoding.name


def marked_encoding(start: bytes) -> str | None:
    """Return the encoding that a byte order mark names; None without a mark."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    return None


def declared_encoding(start: bytes) -> str | None:
    """Return the encoding that XML or a gettext catalogue declares; None without a declaration.

    A declaration that can be read as ASCII is wrong if it names UTF-16 or UTF-32.

    >>> declared_encoding(b'<?xml version="1.0" encoding="ISO-8859-1"?>')
    'iso8859-1'
    """
    start = start.removeprefix(codecs.BOM_UTF8)
    declaration = _XML_ENCODING.match(start)
    if _HEADER.match(start):
        declaration = _CHARSET.search(start)
    if declaration is None:
        return None
    try:
        encoding = standard_encoding(declaration[1].decode())
    except ConfigError:  # `charset=CHARSET` in a template
        return None
    return None if encoding.startswith(_WIDE) else encoding


def probable_encoding(start: bytes) -> str | None:
    """Return the most probable encoding of text without a mark; None if it is not text.

    UTF-16 is found by its NUL bytes, and other encodings by charset-normalizer.
    """
    half = len(start) // 2
    if half and start.count(0) > half // 4:
        # In UTF-16, the high bytes of Latin letters are 0: the second ones, or the first ones.
        return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    from charset_normalizer import from_bytes  # noqa: PLC0415 - only for text that is not UTF-8

    # From little to much chaos.
    matches = list(from_bytes(start, cp_exclusion=_RARE.split()))
    if not matches:
        return None
    likely = [match for match in matches if match.chaos <= matches[0].chaos + _SIMILAR_CHAOS]
    best = max(likely, key=lambda match: match.coherence)
    if best.language not in _LANGUAGES.get(best.encoding, (best.language,)):
        return _WESTERN_EUROPEAN
    return best.encoding


def _escape_bad_byte(error: Any) -> tuple[str, int]:
    """Decode one bad byte as a lone surrogate, which `surrogateescape` encodes as a bad byte."""
    bad_byte = max(error.object[error.start], 0x80)  # smaller ones are good in UTF-8
    return chr(_ESCAPED + bad_byte), error.start + 1


codecs.register_error(_BAD_BYTES, _escape_bad_byte)


def _in_utf8(
    stream: IO[bytes], name: str, encoding: str, *, ends_with_cr: bool
) -> Generator[bytes, None, None]:
    """Yield text in any encoding in pieces of UTF-8, with LF at the end of each line.

    Bytes that are not text in the encoding become bytes that are not UTF-8, so that
    `nmt.files.lines.decode_line` finds them.

    Args:
        stream: The bytes of the file; closed at the end.
        name: Name of the file in messages.
        encoding: Encoding of the text, by its standard name.
        ends_with_cr: Whether lines end with CR alone, as in files of old Macs.
    """
    with stream:
        pieces = read_pieces(stream, name, START_BYTES)
        for text in codecs.iterdecode(pieces, encoding, _BAD_BYTES):
            ended = text.replace("\r", "\n") if ends_with_cr else text
            yield ended.encode(UTF8, "surrogateescape")


def open_text(path: Path, encoding: str | None = None) -> IO[bytes]:
    """Open a text file to read its bytes as UTF-8, decompressed, with lines that end with LF.

    A byte order mark decides about the encoding, whatever ``encoding`` says. A file with carriage
    returns but no line feed in its beginning has lines that end with a carriage return.

    Args:
        path: The file.
        encoding: Encoding of the text; None for UTF-8.

    Raises:
        ConfigError: Python does not know the encoding.
        DataError: See `open_binary`; or the text is UTF-16 without a byte order mark, but is read
            as UTF-8.
    """
    start = b""
    if path.is_file() or place_in_archive(path):  # the first bytes of a pipe cannot be read twice
        start = first_bytes(path, START_BYTES)
    encoding = marked_encoding(start) or standard_encoding(encoding or UTF8)
    if encoding in _WIDE:  # without a mark: as Windows writes it
        encoding += "-le"
    if encoding == UTF8 and start.count(0) > _WIDE_SHARE * len(start):
        encoding = probable_encoding(start)
        raise DataError(
            f"{path} has many NUL bytes: it is probably {encoding}.",
            fix=f"Set `encoding` to {encoding}, or convert the file to UTF-8.",
        )
    text = start.decode(encoding, "replace")
    ends_with_cr = "\r" in text and "\n" not in text
    stream = open_binary(path)
    if encoding == UTF8 and not ends_with_cr:
        return stream
    pieces = _in_utf8(stream, str(path), encoding, ends_with_cr=ends_with_cr)
    return io.BufferedReader(PieceStream(pieces))
