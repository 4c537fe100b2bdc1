"""Options of `nmt.init` and `nmt.doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Json
from nmt.config.flag import Flag, Options

_Files = tuple[Path, Path] | None


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """The doctor has none."""


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """Which files to split, and where to."""

    source: Annotated[Path, Flag("Source text, one sentence a line.", argument=True)]
    target: Annotated[Path, Flag("Its translations, line by line.", argument=True)]
    output: Annotated[
        Path | None,
        Flag("Folder to make.", short="o", metavar="FOLDER", shown="the languages"),
    ] = None
    languages: Annotated[
        str | None,
        Flag("Language pair, as in de-en.", short="l", metavar="PAIR",
             shown="the ends of the names"),
    ] = None  # fmt: skip
    seed: Annotated[int, Flag("Decides which pairs are held out.", min=0)] = 1
    valid: Annotated[
        _Files,
        Flag("Validation set, instead of pairs drawn from the corpus.", metavar="SOURCE TARGET"),
    ] = None
    test: Annotated[
        _Files, Flag("Test set, instead of pairs drawn from the corpus.", metavar="SOURCE TARGET")
    ] = None
    json: Json = False
