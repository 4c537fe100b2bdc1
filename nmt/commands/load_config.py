"""A configuration file, with the values that depend on the size of its corpora."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmt.config import loader
from nmt.config.run import RunConfig
from nmt.data.corpus import check_files, count_characters


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration file; without ``training`` it gets values for the size of its corpora.

    Args:
        path: A YAML file.
        overrides: ``section.key=value`` each, the value as YAML; later ones win.

    Raises:
        ConfigError: Anything is wrong, missing files are named too; or ``training`` is missing and
            nobody knows the size.
        DataError: ``training`` is missing, and so is a file of the corpora.
    """
    return loader.load_config(
        path, overrides, count_characters=count_characters, check_files=check_files
    )
