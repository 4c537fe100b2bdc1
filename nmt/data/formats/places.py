"""What the places of ``nmt init`` contain: files, archives and folders with parallel text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.data.formats.layout import Layout, Wanted

Part = Literal["train", "valid", "test"]
TEXT = "text"  # Format of two aligned text files, in a `Layout`.


@dataclass(frozen=True)
class PartFiles:
    """The files of one part, which are either pairs of files or files with both sides.

    Args:
        layout: Format and encoding. The format of aligned text files is `TEXT`.
        sources: Files with the source, in the order of ``targets``; or files with both sides.
        targets: Files with the target; empty if each file has both sides.
    """

    layout: Layout
    sources: tuple[Path, ...]
    targets: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Places:
    """Parallel text in files, archives and folders. A path may lead into an archive.

    Args:
        languages: Codes of the source and the target language.
        parts: Files of each part; the training part is always there.
        unused: Why a file is not used, by its path.
    """

    languages: tuple[str, str]
    parts: Mapping[Part, PartFiles]
    unused: Mapping[Path, str]


def find_places(
    places: Sequence[Path],
    wanted: Wanted,
    *,
    format_name: str | None = None,
    encoding: str | None = None,
) -> Places:
    """Find parallel text. Reads the beginnings of files, and the lists of archives.

    Args:
        places: Two files; a file with both sides; an archive; a folder; or shards of both sides.
        wanted: Languages and columns that the user has named.
        format_name: Name of the format; None if the files decide.
        encoding: Encoding; None for UTF-8, or that of a byte order mark.

    Raises:
        ConfigError: The format or the encoding is unknown.
        DataError: A place is missing, damaged, or has no parallel text; or it is not certain which
            files or languages are meant. The message shows the commands to choose from.
    """
    raise NotImplementedError
