"""Options of `nmt.init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nmt.commands.options import Json
from nmt.config.flag import Flag, Options

_Pair = Annotated[tuple[Path, Path] | None, Flag(metavar="SOURCE TARGET")]


class InitOptions(Options):
    """The files to split, and the output folder.

    Args:
        source: Source text, one sentence per line.
        target: Translations of the source, line by line.
        output: Output folder; it must not exist.
        languages: Language pair, such as de-en.
        seed: Random seed for the choice of validation and test pairs.
        valid: Validation set: a source file and a target file. By default, up to 1,000 pairs are
            drawn from the corpus.
        test: Test set: a source file and a target file (not a name as in `nmt evaluate`). By
            default, up to 1,000 pairs are drawn from the corpus.
    """

    source: Annotated[Path, Flag(argument=True)]
    target: Annotated[Path, Flag(argument=True)]
    output: Annotated[Path | None, Flag(short="o", metavar="FOLDER", shown="the language pair")] = (
        None
    )
    languages: Annotated[
        str | None, Flag(short="l", metavar="PAIR", shown="from the file extensions")
    ] = None
    seed: Annotated[int, Flag(min=0)] = 1
    valid: _Pair = None
    test: _Pair = None
    json: Json = False
