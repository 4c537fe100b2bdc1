"""The file of short lists: which target tokens each source token may become. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from nmt.checkpoint.model_folder import SHORTLIST, write_extra
from nmt.errors import CheckpointError, ConfigError


class ShortlistParts(NamedTuple):
    """The short lists of a model. F common tokens, V source tokens, C candidates of each."""

    # Target ids that every sentence may need, the most frequent first. (F,).
    common: npt.NDArray[np.integer[Any]]
    # Target ids that each source token may become, the likeliest first; -1 where there are fewer.
    # (V, C).
    candidates: npt.NDArray[np.integer[Any]]


def read_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts | None:
    """Return the short lists of a run or model folder; None if it has none.

    Args:
        folder: Where the file is looked for.
        vocab_sizes: Entries of the source and of the target vocabulary.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / SHORTLIST
    if not path.is_file():
        return None
    try:
        found = load_file(path)
        parts = ShortlistParts(found["common"], found["candidates"])
        if (parts.common.ndim, parts.candidates.ndim) != (1, 2) or not parts.candidates.size:
            raise ValueError("its parts have other shapes")
        if any(part.dtype.kind != "i" for part in parts):
            raise ValueError("its parts are no whole numbers")
        source_size, target_size = vocab_sizes
        largest = max(part.max(initial=-1) for part in parts)
        if len(parts.candidates) != source_size or largest >= target_size:
            raise ValueError("it is of another vocabulary")
        if parts.common.min(initial=0) < 0 or parts.candidates.min() < -1:
            raise ValueError("it holds numbers that are no tokens")
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}.",
            fix="Remove it; a finished run gets it again when its training is started again.",
        ) from error
    return parts


def require_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts:
    """Return the short lists of a folder, which ``decoding.shortlist`` asks for.

    Raises:
        ConfigError: It has none.
        CheckpointError: They are damaged.
    """
    if (parts := read_shortlist(folder, vocab_sizes)) is None:
        raise ConfigError(
            f"decoding.shortlist is on, but {folder} has no {SHORTLIST}.",
            fix="Start `nmt train CONFIG` again: a finished run only writes it. Or set "
            "decoding.shortlist to false.",
        )
    return parts


def copy_shortlist(prepared_dir: Path, run_dir: Path) -> None:
    """Copy the short lists that `prepare` made into a run, which is then complete without its data.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    if (made := prepared_dir / SHORTLIST).is_file():
        write_extra(run_dir / SHORTLIST, made.read_bytes())
