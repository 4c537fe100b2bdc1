"""Compressed files: gzip, bzip2, xz and Zstandard, which the first bytes tell apart."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from nmt.errors import DataError

_LONGEST_WINDOW = 31  # log2 of the bytes: the most that `zstd --long` writes; its default is 27.


def _open_zstandard(file: Path | IO[bytes]) -> Any:
    """Open a file with the first library that is installed: Python 3.14, or its backport."""
    # Not `zstandard`: it does not detect a truncated file.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            library = importlib.import_module(name)
            window = library.DecompressionParameter.window_log_max
            return library.open(file, options={window: _LONGEST_WINDOW})
    shown = file if isinstance(file, Path) else "The input"
    raise DataError(
        f"{shown} is compressed with Zstandard, but backports.zstd is not installed.",
        fix="Run `pip install backports.zstd`, or decompress the file.",
    )


# By suffix: a pattern for the first bytes, and a function that opens the file.
COMPRESSIONS: dict[str, tuple[re.Pattern[bytes], Callable[..., Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), gzip.open),
    # Text may begin with BZh, so the mark of the first block, or of the end, must follow.
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    ".xz": (re.compile(rb"\xfd7zXZ\0"), lzma.open),
    # A file that several processes have written may begin with a frame to skip.
    ".zst": (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _open_zstandard),
}
LONGEST_MARK = 10  # Number of first bytes that identify a compression.


def decompressed(stream: Any) -> Any:
    """Return a stream of the decompressed bytes; the same stream if it is not compressed."""
    opener = opener_of(stream.peek(LONGEST_MARK))
    return stream if opener is None else opener(stream)


def opener_of(start: bytes) -> Callable[..., Any] | None:
    """Return the function that opens a file with these first bytes; None for plain text."""
    return next((opener for mark, opener in COMPRESSIONS.values() if mark.match(start)), None)
