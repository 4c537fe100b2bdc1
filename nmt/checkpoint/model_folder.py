"""The parts of a model folder: named, read, and written whole or not at all. Loads no torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from nmt.checkpoint.files import checkpoints_dir
from nmt.config.loader import load_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, TokenizerError
from nmt.files.atomic import atomic_folder, write_bytes, write_errors
from nmt.files.manifest import Manifest
from nmt.text.tokenizer import Tokenizers, load_tokenizers

CONFIG, _TOKENIZER = "config.yaml", "tokenizer"
GUARD, SHORTLIST = "guard.json", "shortlist.safetensors"
EXTRAS = (GUARD, SHORTLIST)
"""Files that a finished run has. They depend on its data alone, not on the weights."""
_MAX_PLACES = 5


def write_extra(path: Path, content: bytes) -> None:
    """Write one of `EXTRAS`, whole or not at all.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    fix = "Free disk space, or make the folder writable; then start the same command again."
    with write_errors(path, CheckpointError, fix=fix):
        write_bytes(path, content)


def check_new_folder(folder: Path, source: Path) -> None:
    """Raise a ConfigError, early, where `write_model_folder` could not make ``folder``."""
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(
                f"{folder} is there already, and is not overwritten.",
                fix="Name another folder with --output, or remove this one first.",
            )
        if folder.resolve().is_relative_to(checkpoints_dir(source).resolve()):
            raise ConfigError(
                f"{folder} is among the checkpoints of the run.",
                fix="Name a folder outside of it with --output.",
            )
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}.",
            fix="Name a folder with --output where you can write.",
        ) from error


def write_model_folder(
    folder: Path, source: Path, step: int, write: Callable[[Path], None]
) -> None:
    """Write a model folder: configuration and tokenizer, what ``write`` adds, then the manifest.

    Args:
        folder: Folder to make; missing or empty.
        source: Run or model folder whose configuration, tokenizer and `EXTRAS` are copied.
        step: Updates the model was trained for.
        write: Writes the weights and all else into the folder it is given.

    Raises:
        CheckpointError: ``folder`` holds something, or cannot be written.
    """
    try:
        with atomic_folder(folder) as temporary:  # fails if somebody has put something there
            _copy(source, temporary)
            write(temporary)
            _seal(temporary, step)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} was not written: {getattr(error, 'strerror', None) or error}.",
            fix="Choose an empty place that can be written, with room on its disk.",
        ) from error


def _copy(source: Path, folder: Path) -> None:
    shutil.copyfile(source / CONFIG, folder / CONFIG)
    (folder / _TOKENIZER).mkdir()
    for path in (*(source / name for name in EXTRAS), *(source / _TOKENIZER).iterdir()):
        if path.is_file():
            shutil.copyfile(path, folder / path.relative_to(source))


def _seal(folder: Path, step: int) -> None:
    """Write the manifest, last."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in paths:
        shutil.copymode(folder / CONFIG, path)  # safetensors keeps others from reading its files
    names = [path.relative_to(folder).as_posix() for path in paths]
    Manifest.of(folder, names, step).write(folder)


@contextmanager
def readable() -> Iterator[None]:
    """Turn the errors of the operating system while a model is read into `CheckpointError`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # of a library that does not load, say
            raise
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror or error}.",
            fix="Let the files of the model be read by you, or copy the folder again.",
        ) from error


@readable()
def load_folder_config(folder: Path) -> RunConfig:
    """Load the configuration that a model was trained with.

    Raises:
        CheckpointError: It is missing or was changed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        inside = sorted(str(config.parent) for config in folder.glob("*/config.yaml"))
        such_as = f", such as {', '.join(inside[:_MAX_PLACES])}" if inside else ""
        raise CheckpointError(
            f"{folder} has no config.yaml, so it is no model folder.",
            fix=f"Name the run folder that `nmt train` wrote{such_as}.",
        )
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


def damaged_extra(path: Path, error: Exception) -> CheckpointError:
    """Return what the reader of such a file raises."""
    return CheckpointError(
        f"{path} is damaged: {error}.",
        fix="Remove it; a finished run gets it again when its training is started once more.",
    )
