"""Options of `nmt.init` and `nmt.doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Json
from nmt.config.flag import Flag, Options

Pair = tuple[Path, Path] | None


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """The doctor has none."""


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """Which files to split, and where to.

    Args:
        source: Source text, one sentence a line.
        target: Its translations, line by line.
        output: Folder to make.
        languages: Language pair, as in de-en.
        seed: Decides which pairs are held out.
        valid: Validation set, instead of pairs drawn from the corpus.
        test: Test set, instead of pairs drawn from the corpus.
    """

    source: Annotated[Path, Flag(argument=True)]
    target: Annotated[Path, Flag(argument=True)]
    output: Annotated[Path | None, Flag(short="o", metavar="FOLDER", shown="the languages")] = None
    languages: Annotated[
        str | None, Flag(short="l", metavar="PAIR", shown="the ends of the names")
    ] = None
    seed: Annotated[int, Flag(min=0)] = 1
    valid: Annotated[Pair, Flag(metavar="SOURCE TARGET")] = None
    test: Annotated[Pair, Flag(metavar="SOURCE TARGET")] = None
    json: Json = False
