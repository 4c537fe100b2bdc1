"""Formats of files with sentence pairs: one module per format, behind one interface.

`layout_of` looks at the beginning of a file and finds its format, its encoding and its columns.
The format then reads the file, however it is named.
"""

from __future__ import annotations

from pathlib import Path

from nmt.data.formats.file_names import format_of_name
from nmt.data.formats.layout import Format, Layout, Sample, Wanted
from nmt.data.formats.text import shown_path
from nmt.errors import DataError
from nmt.files.encoding import START_BYTES, declared_encoding, open_text, standard_encoding
from nmt.files.lines import first_bytes, read_pieces
from nmt.registry import Registry

# In the order in which they are tried on a file whose name does not tell.
FORMATS: Registry[Format] = Registry("corpus format")


def all_formats() -> list[Format]:
    """Return the formats in the order in which they are tried."""
    return [FORMATS[name] for name in FORMATS]


def sample_of(path: Path, encoding: str | None = None) -> Sample:
    """Read the beginning of a file; its encoding is the one that is given, or that it declares.

    Raises:
        ConfigError: The encoding is unknown.
        DataError: The file is missing, empty or damaged.
    """
    encoding = encoding or declared_encoding(first_bytes(path, START_BYTES))
    with open_text(path, encoding) as stream:
        start = next(read_pieces(stream, str(path), START_BYTES), b"")
    if not start.strip():
        raise DataError(f"{shown_path(path)} is empty.", fix="Pass a file with sentence pairs.")
    return Sample(path, start, standard_encoding(encoding or "utf-8"))


def layout_of(path: Path, wanted: Wanted) -> Layout:
    """Find out how the pairs of a file are stored.

    The format is the one that the user names, or that recognises the content, or that the suffix of
    the file names.

    Args:
        path: A file with both sides.
        wanted: What the user has said about the file.

    Raises:
        ConfigError: The format or the encoding is unknown.
        DataError: The file has no format of `FORMATS`, is damaged, or is ambiguous.
    """
    sample = sample_of(path, wanted.encoding)
    by_content = (each.name for each in all_formats() if each.recognises(sample))
    name = wanted.format or next(by_content, format_of_name(path))
    if name is not None:
        return FORMATS[name].layout(sample, wanted)
    known = ", ".join(FORMATS)
    problem = f"{path} is not in a format with both sides that nmt knows ({known})."
    fix = "Pass two aligned text files, or name the format, such as `format` csv for any table."
    raise DataError(problem, fix=fix)
