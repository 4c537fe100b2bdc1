"""The parts of a model folder beside the weights. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nmt.config.loader import load_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, TokenizerError
from nmt.text.tokenizer import Tokenizers, load_tokenizers

_MOST_PLACES = 5


@contextmanager
def readable() -> Iterator[None]:
    """Turn what the operating system refuses while a model is read into one message.

    Raises:
        CheckpointError: It refuses something.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:  # of a library that does not load, say
            raise
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror or error}.",
            fix="Let the files of the model be read by you, or copy the folder again.",
        ) from error


def _such_as(places: Sequence[str]) -> str:
    shown = ", ".join(places[:_MOST_PLACES]) + (", ..." if len(places) > _MOST_PLACES else "")
    return f", such as {shown}" if places else ""


def load_folder_config(folder: Path) -> RunConfig:
    """Load the configuration that a model was trained with.

    Raises:
        CheckpointError: It is missing or was changed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        inside = sorted(str(config.parent) for config in folder.glob("*/config.yaml"))
        raise CheckpointError(
            f"{folder} has no config.yaml, so it is no model folder.",
            fix=f"Name the run folder that `nmt train` wrote{_such_as(inside)}.",
        )
    with readable():
        path.open("rb").close()
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
