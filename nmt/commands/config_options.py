"""Options of ``nmt config``: schema, keys, show and check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import ConfigFile, Overrides
from nmt.config.flag import Flag


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The schema has none."""


@dataclass(frozen=True, kw_only=True)
class KeysOptions:
    """Which keys to describe."""

    section: Annotated[
        str, Flag("Section, such as model, or one key; all if left out.", argument=True)
    ] = ""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Which configuration to print."""

    config: ConfigFile
    set_: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Which configurations to check."""

    configs: Annotated[
        tuple[Path, ...], Flag("YAML configuration files.", argument=True, metavar="CONFIG")
    ]
    set_: Overrides = ()
