"""Results of blocks on disk: a preparation that was killed makes only those that are missing.

A shard is named after all that it was made from: the function with its parameters, and the pairs.
It appears whole, and holds its own hash. Corpora of less than one whole block have none, nor has
the last block of each: what would be saved is little.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import Block

_VALUES = "values"
logger = logging.getLogger(__name__)

R = TypeVar("R", bound="OfBlock")


class Parts(NamedTuple):
    """A result as a file can hold it."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Any
    """The rest, as JSON has it."""


class OfBlock(Protocol):
    """What has been made of a block."""

    @property
    def num_lines(self) -> int:
        """Pairs of the block."""


class Storable(Protocol[R]):
    """A function of blocks whose results can be stored."""

    def __call__(self, block: Block, /) -> R:
        """Return the result."""

    def parts(self, result: R, /) -> Parts:
        """Return what must be stored of a result."""

    def restored(self, block: Block, parts: Parts, /) -> R:
        """Return the result of a block again."""


class Made(NamedTuple, Generic[R]):
    """A result, and where it comes from."""

    result: R
    damaged: str | None = None
    """The file that should have held it."""

    @property
    def num_lines(self) -> int:
        """Pairs of the block."""
        return self.result.num_lines


@dataclass(frozen=True, slots=True)
class Sharded(Generic[R]):
    """A function whose results are stored in a folder. Any process that sees it may call."""

    make: Storable[R]
    folder: Path | None
    """None to store nothing."""
    stage: str
    """Start of the names."""
    key: str
    """Hash of all that the function depends on beside its argument."""
    least: int
    """Pairs of a whole block; what is made of fewer is not kept."""

    def __call__(self, block: Block) -> Made[R]:
        """Read the result if it is stored; else make and store it.

        Raises:
            OSError: It cannot be written.
        """
        # Workers elsewhere may not see the folder.
        if self.folder is None or len(block) < self.least or not self.folder.is_dir():
            return Made(self.make(block))
        digest = hashlib.sha256(f"{self.key} {block.content}".encode()).hexdigest()
        path = self.folder / f"{self.stage}-{block.first:010}-{digest[:32]}.shard"
        damaged = None
        try:
            return Made(self.make.restored(block, _read(path)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            damaged = str(path)
        result = self.make(block)
        _write(path, self.make.parts(result))
        return Made(result, damaged)


@contextmanager
def shard_folder(prepared: Path) -> Iterator[Path]:
    """Make a folder beside a prepared one. It goes at the end; shards in it outlast an error.

    Raises:
        OSError: It cannot be made.
    """
    folder = prepared.with_name(f".{prepared.name}.work")
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    except BaseException:
        if any(folder.glob("*.shard")):
            logger.warning("%s keeps what is done, for the next `nmt prepare`", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> Parts:
    digest, _, content = path.read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError("its content has changed")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = dict(stored)
    return Parts(arrays, json.loads(arrays.pop(_VALUES).tobytes()))


def _write(path: Path, parts: Parts) -> None:
    """Write a file that appears whole. A power cut may damage it, which its hash shows."""
    buffer = io.BytesIO()
    values = np.frombuffer(json.dumps(parts.values).encode(), np.uint8)
    arrays: dict[str, Any] = {**parts.arrays, _VALUES: values}
    np.savez(buffer, **arrays)
    content = buffer.getbuffer()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(hashlib.sha256(content).hexdigest().encode() + b"\n")
        file.write(content)
    temporary.replace(path)
