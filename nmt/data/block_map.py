"""A function of blocks -> its results in order, stored so that a kill costs little.

A result is stored under a hash of all that it was made from: the function's settings and the
block's content. Its file appears whole and holds checksums. The last, smaller block of a corpus
is made again: a small corpus leaves no files behind.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import Block
from nmt.data.workers import HERE, Workers
from nmt.errors import DataError
from nmt.files.progress import progress_bar

_VALUES = "values"
logger = logging.getLogger(__name__)


class Result(NamedTuple):
    """What a function makes of a block, in a form that a file can hold."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Any = None  # plain data, as JSON has it
    damaged: str | None = None  # name of a file that should have held it


def map_blocks(
    name: str,
    blocks: Iterator[Block],
    function: Callable[[Block], Result],
    *,
    workers: Workers = HERE,
    total: int | None = None,
) -> Iterator[tuple[Block, Result]]:
    """Yield each block with its result, in order.

    Args:
        name: What is done, for the progress bar, such as ``reading train.de``.
        blocks: Read in this process, a few ahead of their use.
        function: Pure and picklable; perhaps `Stored`.
        workers: Where the function is called.
        total: Lines of all blocks, if that is known.

    Raises:
        DataError: There are more or fewer lines than ``total``.
    """
    done = 0
    sent, blocks = tee(blocks)  # holds those that are sent and have not come back
    with progress_bar(name, unit="pairs", total=total, leave=False) as progress:
        for block, result in zip(blocks, workers.map(function, sent), strict=True):
            if result.damaged is not None:
                logger.warning("%s was damaged, and has been made again", result.damaged)
            yield block, result
            done += len(block)
            progress.update(len(block))
    if total is not None and done != total:
        raise has_changed(name.partition(" ")[2])


def has_changed(corpus: str) -> DataError:
    """Return the error of a corpus that has other lines than when it was read before."""
    return DataError(
        f"The corpus {corpus} changed while it was read.",
        fix="Prepare again when nothing writes to the corpora any more.",
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """A function whose results are read from files, or made and stored there."""

    function: Callable[[Block], Result]
    folder: Path
    key: str  # a hash of all that the function depends on beside its block
    least: int = 0  # lines of a block that is worth a file

    def __call__(self, block: Block) -> Result:
        """Return the result, in any process."""
        # Workers on other machines may not see the folder.
        if len(block) < self.least or not self.folder.is_dir():
            return self.function(block)
        digest = hashlib.sha256(f"{self.key} {block.content}".encode()).hexdigest()
        arrays: dict[str, Any]
        path, damaged = self.folder / f"{block.first:010}-{digest[:32]}.shard", None
        try:
            with path.open("rb") as file, np.load(file) as stored:
                if stored.zip.testzip() is not None:
                    raise BadZipFile("its content has changed")
                arrays = dict(stored)
            return Result(arrays, json.loads(arrays.pop(_VALUES).tobytes()))
        except FileNotFoundError:
            pass
        except Exception:  # of the system, zipfile, numpy or JSON: it is made again
            damaged = str(path)
        result = self.function(block)
        values = np.frombuffer(json.dumps(result.values).encode(), np.uint8)
        arrays = {**result.arrays, _VALUES: values}
        # It appears whole. A power cut may damage it, which its checksums show.
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as new:
            np.savez(new, **arrays)
        temporary.replace(path)
        return result._replace(damaged=damaged)


@contextmanager
def work_folder(beside: Path) -> Iterator[Path]:
    """Make a folder of shards beside another folder. It goes at the end, unless there is an error.

    Raises:
        OSError: It cannot be made.
    """
    folder = beside.with_name(f".{beside.name}.work")
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    except BaseException:
        if any(folder.glob("*.shard")):
            logger.warning("%s keeps what is done; the same command continues there", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
