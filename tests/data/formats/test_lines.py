"""Lines that are not text in the encoding of their file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from nmt.data.formats.pair import BadPair, ReadOptions
from nmt.data.formats.text import TextFile
from nmt.errors import DataError

TEXT = "Ein Satz.\nDie Bücher für größere Häuser.\nMüller fährt über die Brücke.\n"
OPTIONS = ReadOptions("de", "en", skip_advice="pass `skip_unreadable`")


def read(path: Path, options: ReadOptions, encoding: str | None = None) -> list[str | BadPair]:
    file = TextFile(path, encoding, options)
    return list(file.texts(file.raw_lines(), 1))


def test_a_bad_byte_is_answered_with_the_probable_encoding_and_the_ways_out() -> None:
    path = Path("old.de")
    path.write_bytes(TEXT.encode("latin-1"))
    with pytest.raises(DataError, match=r"old\.de, line 2, byte 6: 0xfc is not UTF-8") as caught:
        read(path, OPTIONS)
    assert caught.value.fix == (
        "The file is probably cp1252: convert it (iconv -f cp1252 -t utf-8 old.de > NEW), "
        "set `encoding` to cp1252, or pass `skip_unreadable`."
    )
    assert read(path, OPTIONS, "cp1252") == TEXT.splitlines()
    compressed = Path("old.de.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read(compressed, ReadOptions("de", "en"))
    assert caught.value.fix == (
        "The file is probably cp1252: set `encoding` to cp1252, or set filters.on_bad_utf8: skip."
    )
    skipping = ReadOptions("de", "en", "skip")
    assert [isinstance(line, BadPair) for line in read(path, skipping)] == [False, True, True]


def test_the_message_names_the_encoding_that_the_user_has_set() -> None:
    path = Path("x.de")
    path.write_bytes(b"a\x81b\n")  # cp1252 does not have this byte
    with pytest.raises(DataError, match="line 1, byte 2: 0x81 is not text in cp1252"):
        read(path, OPTIONS, "cp1252")
