"""Output files whose finished lines are kept, so that an interrupted command continues there."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nmt.files.atomic import file_lock, open_output, write_json
from nmt.files.lines import is_standard

Chunk = tuple[int, list[Any]]  # number of the first line, lines of the input
_SAVED_SECONDS = 1.0  # between two records

logger = logging.getLogger(__name__)


class Output:
    """An output that cannot be continued, such as a pipe."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def remaining(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Return the chunks of the input whose results are not written yet."""
        return chunks

    def add(self, lines: Sequence[Any]) -> None:
        """Note that the results of some more lines of the input are written."""


class _Part(Output):
    """The finished lines of a file: ``OUT.part``, with a record of their input and options.

    Args:
        path: The file ``OUT.part``.
        settings: Everything that the output depends on, except for the input.
    """

    def __init__(self, path: Path, settings: object) -> None:
        super().__init__(path.open("a+b"))
        self._path = path
        self._record_path = path.with_name(f"{path.name}.json")
        self._settings = repr(settings)
        self._restart()
        self._save_time = 0.0

    def _restart(self) -> None:
        self._num_lines = 0  # of the input
        self._num_bytes = 0  # of their results
        self._hash = hashlib.sha256(self._settings.encode())

    def remaining(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        record: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            record = json.loads(self._record_path.read_bytes())
        num_finished = record.get("lines", 0)
        read_chunks = list[Chunk]()
        rest = list[Chunk]()
        while self._num_lines < num_finished and (chunk := next(chunks, None)):
            read_chunks.append(chunk)
            first_number, lines = chunk
            size = num_finished - self._num_lines
            self._add(lines[:size])
            rest = [(first_number + size, lines[size:])]
        if record.get("sha256") == self._hash.hexdigest():
            self._num_bytes = record["bytes"]
            logger.info("%s: continuing after line %s", self._path, f"{num_finished:,}")
        else:
            if record:
                logger.warning("%s: starting again: input or options differ", self._path)
            self._restart()
            rest = read_chunks
        self.stream.truncate(self._num_bytes)
        yield from rest
        yield from chunks

    def _add(self, lines: Sequence[Any]) -> None:
        self._num_lines += len(lines)
        for line in lines:
            self._hash.update(repr(line).encode("utf-8", "backslashreplace"))

    def add(self, lines: Sequence[Any]) -> None:
        self._add(lines)
        self.stream.flush()
        self._num_bytes = self._path.stat().st_size
        if time.monotonic() > self._save_time + _SAVED_SECONDS:
            self.save()

    def save(self) -> None:
        """Record what is finished."""
        values = {
            "lines": self._num_lines,
            "bytes": self._num_bytes,
            "sha256": self._hash.hexdigest(),
        }
        write_json(self._record_path, values)
        self._save_time = time.monotonic()

    def remove(self) -> None:
        """Remove both files."""
        self._path.unlink()
        self._record_path.unlink()


@contextmanager
def resumable_output(path: Path | None, settings: object) -> Iterator[Output]:
    """Open an output as `open_output` does; keep the finished part of a file if it is interrupted.

    Args:
        path: The file; None or ``-`` for standard output.
        settings: Everything that the output depends on, except for the input. Its `repr` counts.

    Raises:
        DataError: Writing fails, now or later.
        CheckpointError: Another process writes the same file.
    """
    if path is None or is_standard(path) or (path.exists() and not path.is_file()):
        with open_output(path) as stream:
            yield Output(stream)
        return
    part_path = path.with_name(f"{path.name}.part")
    with (
        open_output(path) as stream,
        file_lock(path.with_name(f".{part_path.name}.lock"), remove=True),
    ):
        part = _Part(part_path, settings)
        with part.stream:
            try:
                yield part
            finally:
                part.save()
            part.stream.seek(0)
            shutil.copyfileobj(part.stream, stream)
    part.remove()
