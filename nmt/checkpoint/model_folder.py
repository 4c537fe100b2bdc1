"""A new model folder: complete in itself, written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from nmt.checkpoint.extras import EXTRAS
from nmt.checkpoint.files import checkpoints_dir
from nmt.errors import CheckpointError, ConfigError
from nmt.files.atomic import force_to_disk, replace_bytes, replace_text
from nmt.files.manifest import NAME as MANIFEST
from nmt.files.manifest import Manifest

CONFIG, _TOKENIZER = "config.yaml", "tokenizer"


def write_extra(path: Path, content: bytes) -> None:
    """Write one of `nmt.checkpoint.extras`, whole or not at all.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    try:
        replace_bytes(path, content)
    except OSError as error:
        raise CheckpointError(
            f"{path} was not written: {error.strerror or error}.",
            fix="Free disk space, or let the folder be written; then start the same command again.",
        ) from error


def check_new_folder(folder: Path, source: Path) -> None:
    """Find out early whether `write_model_folder` may write.

    Args:
        folder: Folder to make.
        source: Run or model folder that it comes from.

    Raises:
        ConfigError: There is something already, or no place for it.
    """
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(
                f"{folder} is there already, and is not overwritten.",
                fix="Name another folder with --output, or remove this one first.",
            )
        inside = checkpoints_dir(source).resolve()
        if folder.resolve().is_relative_to(inside):
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
        source: Run or model folder whose configuration and tokenizer are copied, and of its extras
            those that do not depend on the weights.
        step: Updates the model was trained for.
        write: Writes the weights and all else into the folder it is given.

    Raises:
        CheckpointError: ``folder`` holds something, or cannot be written.
    """
    place = folder.absolute()  # so that `.` has a name and a parent
    temporary = place.with_name(f".tmp-{place.name}-{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        _copy(source, temporary)
        write(temporary)
        _seal(temporary, step)
        temporary.rename(place)  # fails if somebody has put something there
        force_to_disk(place.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} was not written: {getattr(error, 'strerror', None) or error}.",
            fix="Choose an empty place that can be written, with room on its disk.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy(source: Path, folder: Path) -> None:
    shutil.copyfile(source / CONFIG, folder / CONFIG)
    for name in EXTRAS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    (folder / _TOKENIZER).mkdir()
    for path in sorted((source / _TOKENIZER).iterdir()):
        if path.is_file():
            shutil.copyfile(path, folder / _TOKENIZER / path.name)


def _seal(folder: Path, step: int) -> None:
    """Write the manifest last, and force everything to the disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in paths:
        shutil.copymode(folder / CONFIG, path)  # safetensors keeps others from reading its files
        force_to_disk(path)
    force_to_disk(folder / _TOKENIZER)
    names = [path.relative_to(folder).as_posix() for path in paths]
    replace_text(folder / MANIFEST, Manifest.of(folder, names, step).text())
    force_to_disk(folder)
