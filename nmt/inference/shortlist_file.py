"""The file of short lists: which target tokens each source token may become. Loads no torch."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from nmt.checkpoint.model_folder import SHORTLIST, write_extra
from nmt.data.lexicon import likely_translations
from nmt.data.prepared import PreparedData
from nmt.data.workers import map_here, watched
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import ShortlistParts
from nmt.files.progress import progress_bar

_MOST_CANDIDATES = 30
_MOST_COMMON = 200


class ShortlistFile:
    """The file of one folder. What is wrong with it matters to nobody who does not need it.

    Args:
        folder: Run or model folder where it is looked for.
        vocab_sizes: Entries of the source and of the target vocabulary.
    """

    def __init__(self, folder: Path, vocab_sizes: tuple[int, int]) -> None:
        self.path, self.vocab_sizes = folder / SHORTLIST, vocab_sizes

    def require(self) -> ShortlistParts:
        """Return what it holds.

        Raises:
            ConfigError: There is no such file.
            CheckpointError: It is damaged.
        """
        if self.parts is None:
            raise ConfigError(
                f"decoding.shortlist is on, but {self.path.parent} has no {SHORTLIST}.",
                fix="Start `nmt train CONFIG` again: a finished run only writes it. Or add "
                "--no-shortlist.",
            )
        return self.parts

    @cached_property
    def parts(self) -> ShortlistParts | None:
        """What it holds; None if there is no such file.

        Raises:
            CheckpointError: It is damaged.
        """
        if not self.path.is_file():
            return None
        try:
            found = load_file(self.path)
            parts = ShortlistParts(found["common"], found["candidates"])
            if (parts.common.ndim, parts.candidates.ndim) != (1, 2) or not parts.candidates.size:
                raise ValueError("its parts have other shapes")
            if any(part.dtype.kind != "i" for part in parts):
                raise ValueError("its parts are no whole numbers")
            source_size, target_size = self.vocab_sizes
            largest = max(part.max(initial=-1) for part in parts)
            if len(parts.candidates) != source_size or largest >= target_size:
                raise ValueError("it is of another vocabulary")
            if parts.common.min(initial=0) < 0 or parts.candidates.min() < -1:
                raise ValueError("it holds numbers that are no tokens")
        except (OSError, SafetensorError, LookupError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} is damaged: {error}.",
                fix="Remove it; a finished run gets it again when its training is started again.",
            ) from error
        return parts


def shortlist_bytes(common: Any, candidates: Any) -> bytes:
    """Return the content of a file. Arguments as in `ShortlistParts`, as arrays or tensors."""
    parts = {"common": common, "candidates": candidates}
    return save({name: np.asarray(part, order="C") for name, part in parts.items()})


def make_shortlist(run_dir: Path, data: PreparedData) -> None:
    """Write ``shortlist.safetensors`` if there is no whole one: a run has one set of data.

    The bytes are the same for the same data, however the training went.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    manifest = data.manifest
    sizes = manifest.source_vocab_size, manifest.target_vocab_size
    with suppress(CheckpointError):
        if ShortlistFile(run_dir, sizes).parts is not None:
            return
    counts = data.train.token_counts("target", manifest.target_vocab_size)
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    with progress_bar("making short lists", unit="batches", leave=False) as bar:
        mapped = watched(map_here, bar.update)
        candidates = likely_translations(data.train, sizes, _MOST_CANDIDATES, mapped=mapped)
    write_extra(run_dir / SHORTLIST, shortlist_bytes(common, candidates))
