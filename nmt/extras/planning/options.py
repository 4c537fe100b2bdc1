"""Options of `nmt.init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nmt.commands.options import Json
from nmt.config.flag import Flag, Options

_Places = Annotated[tuple[Path, ...], Flag(metavar="PLACE...", shown="drawn from the corpus")]


class InitOptions(Options):
    """The text to split, and the output folder.

    Args:
        places: Parallel text: two aligned files, a file with both sides, an archive, a folder,
            shards of both sides, or a corpus to download: opus:NAME, hub:NAME.
        output: Output folder; it must not exist.
        languages: Language pair, such as de-en.
        columns: Columns of source and target in a table: numbers from 0, or names. Keys of JSON
            lines.
        format: Format of the files, such as tsv.
        encoding: Encoding of the files, such as latin-1.
        seed: Random seed for the choice of validation and test pairs.
        valid: Validation set, in the forms of PLACE. By default, the one of a folder or archive, or
            up to 1,000 pairs of the corpus.
        test: Test set (not a name as in `nmt evaluate`). By default, the one of a folder or
            archive, or up to 1,000 pairs of the corpus.
        skip_unreadable: Leave out and count pairs that cannot be read: bytes that are not text in
            the encoding, NUL characters, missing columns, broken markup. By default, such bytes are
            an error, and so is more than 1% of another kind.
    """

    places: Annotated[tuple[Path, ...], Flag(argument=True, metavar="PLACE")]
    output: Annotated[Path | None, Flag(short="o", metavar="FOLDER", shown="the language pair")] = (
        None
    )
    languages: Annotated[
        str | None, Flag(short="l", metavar="PAIR", shown="from the names or the content")
    ] = None
    columns: Annotated[
        tuple[str, ...], Flag(metavar="A,B", separator=",", shown="by their content")
    ] = ()
    format: Annotated[str | None, Flag(metavar="NAME", shown="by the content")] = None
    encoding: Annotated[str | None, Flag(metavar="NAME", shown="UTF-8")] = None
    seed: Annotated[int, Flag(min=0)] = 1
    valid: _Places = ()
    test: _Places = ()
    skip_unreadable: bool = False
    json: Json = False
