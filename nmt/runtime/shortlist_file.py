"""The file of short lists, read once, when it is first needed. Loads no torch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from nmt.checkpoint.model_folder import SHORTLIST, damaged_extra
from nmt.errors import ConfigError
from nmt.exchange.ctranslate2 import Shortlist
from nmt.files.manifest import sha256_of_file

_COMMON, _CANDIDATES = "common", "candidates"


class ShortlistParts(NamedTuple):
    """What the file holds. F common tokens, V source tokens, C candidates of each."""

    common: npt.NDArray[np.integer[Any]]
    """Target ids, the most frequent first. (F,)."""
    candidates: npt.NDArray[np.integer[Any]]
    """Target ids that each source token may become, the likeliest first; -1 where there are fewer.
    (V, C)."""


class ShortlistFile:
    """The file of one folder. What is wrong with it matters to nobody who does not need it.

    Args:
        folder: Run or model folder where it is looked for.
        vocab_sizes: Entries of the source and of the target vocabulary.
    """

    def __init__(self, folder: Path, vocab_sizes: tuple[int, int]) -> None:
        self._path, self._sizes = folder / SHORTLIST, vocab_sizes

    @property
    def sha256(self) -> str | None:
        """Of the file; None if there is none."""
        return sha256_of_file(self._path) if self._path.is_file() else None

    @property
    def lists(self) -> Shortlist | None:
        """What it holds, as other programs are told; None if there is no such file.

        Raises:
            CheckpointError: It is damaged.
        """
        parts = self.parts
        return parts and Shortlist(parts.common.tolist(), parts.candidates.tolist())

    def require(self) -> None:
        """Refuse to go on without the file.

        Raises:
            ConfigError: There is none.
        """
        if not self._path.is_file():
            raise ConfigError(
                f"decoding.shortlist is on, but {self._path.parent} has no {SHORTLIST}.",
                fix="Start `nmt train CONFIG` again: a finished run only writes it. Or add "
                "--no-shortlist.",
            )

    @cached_property
    def parts(self) -> ShortlistParts | None:
        """What it holds; None if there is no such file.

        Raises:
            CheckpointError: It is damaged.
        """
        if not self._path.is_file():
            return None
        try:
            found = load_file(self._path)
            parts = ShortlistParts(found[_COMMON], found[_CANDIDATES])
            self._check(parts)
        except (OSError, SafetensorError, LookupError, ValueError) as error:
            raise damaged_extra(self._path, error) from error
        return parts

    def _check(self, parts: ShortlistParts) -> None:
        if (parts.common.ndim, parts.candidates.ndim) != (1, 2) or not parts.candidates.size:
            raise ValueError("its parts have other shapes")
        if any(part.dtype.kind != "i" for part in parts):
            raise ValueError("its parts are no whole numbers")
        source_size, target_size = self._sizes
        largest = max(part.max(initial=-1) for part in parts)
        if len(parts.candidates) != source_size or largest >= target_size:
            raise ValueError("it is of another vocabulary")
        if parts.common.min(initial=0) < 0 or parts.candidates.min() < -1:
            raise ValueError("it holds numbers that are no tokens")
