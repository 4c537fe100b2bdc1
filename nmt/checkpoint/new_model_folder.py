"""A new model folder, written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from nmt.checkpoint.files import checkpoints_dir
from nmt.checkpoint.model_folder import CONFIG, EXTRAS, TOKENIZER
from nmt.errors import CheckpointError, ConfigError
from nmt.files.atomic import atomic_folder, write_errors
from nmt.files.manifest import Manifest


def check_new_folder(folder: Path, source: Path) -> None:
    """Raise a ConfigError, early, where `write_model_folder` could not make ``folder``."""
    fix = "Name a folder with `output` where you can write."
    with write_errors(folder, ConfigError, fix=fix):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(
                f"{folder} is there already, and is not overwritten.",
                fix="Name another folder with `output`, or remove this one first.",
            )
        if folder.resolve().is_relative_to(checkpoints_dir(source).resolve()):
            raise ConfigError(
                f"{folder} is among the checkpoints of the run.",
                fix="Name a folder outside of it with `output`.",
            )


def write_model_folder(
    folder: Path, source: Path | None, step: int, write: Callable[[Path], None]
) -> None:
    """Write a model folder: configuration and tokenizer, what ``write`` adds, then the manifest.

    Args:
        folder: Folder to make; missing or empty.
        source: Run or model folder whose configuration, tokenizer and `EXTRAS` are copied; None
            where ``write`` writes them.
        step: Updates the model was trained for.
        write: Writes the weights and all else into the folder it is given.

    Raises:
        CheckpointError: ``folder`` holds something, or cannot be written.
    """
    try:
        with atomic_folder(folder) as temporary:  # fails if somebody has put something there
            if source is not None:
                (temporary / TOKENIZER).mkdir()
                parts = [source / name for name in (CONFIG, *EXTRAS)]
                for path in (*parts, *(source / TOKENIZER).iterdir()):
                    if path.is_file():
                        shutil.copyfile(path, temporary / path.relative_to(source))
            write(temporary)
            paths = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
            for path in paths:  # safetensors keeps others from reading its files
                shutil.copymode(temporary / CONFIG, path)
            names = [path.relative_to(temporary).as_posix() for path in paths]
            Manifest.of(temporary, names, step).write(temporary)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} was not written: {getattr(error, 'strerror', None) or error}.",
            fix="Choose an empty place that can be written, with room on its disk.",
        ) from error
