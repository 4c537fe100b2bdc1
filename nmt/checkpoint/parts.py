"""The parts of a model folder beside the weights. Loads no torch."""

from __future__ import annotations

from pathlib import Path

from nmt.config.loader import load_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, TokenizerError
from nmt.text.tokenizer import Tokenizers, load_tokenizers


def load_folder_config(folder: Path) -> RunConfig:
    """Load the configuration that a model was trained with.

    Raises:
        CheckpointError: It is missing or was changed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no config.yaml, so it is no model folder.",
            fix="Name the run folder that `nmt train` wrote.",
        )
    try:
        return load_config(path)
    except ConfigError as error:
        raise CheckpointError(
            f"{path} was changed or comes from another release:\n{error.problem}",
            fix="Restore the config.yaml that `nmt train` wrote.",
        ) from error


def load_folder_tokenizers(folder: Path) -> Tokenizers:
    """Load the tokenizers that a model was trained with.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    try:
        return load_tokenizers(folder / "tokenizer")
    except TokenizerError as error:
        raise CheckpointError(
            error.problem, fix="Restore the tokenizer folder that `nmt train` wrote."
        ) from error
