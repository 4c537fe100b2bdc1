"""Output files whose finished lines are kept, so that an interrupted command continues there."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from nmt.errors import DataError
from nmt.files.atomic import file_lock, open_output, sync, write_json
from nmt.files.json_file import field, read_json
from nmt.files.lines import is_standard

Chunk = tuple[int, list[Any]]  # number of the first line, lines of the input
logger = logging.getLogger(__name__)


class PartFile:
    """The finished lines of a file: ``OUT.part``, with a record of their input and options.

    Args:
        path: The file ``OUT.part``.
        settings: Everything that the output depends on, except for the input.

    Raises:
        DataError: The file or its record has content that nmt has not written.
    """

    def __init__(self, path: Path, settings: object) -> None:
        self.path = path
        self.record_path = path.with_name(f"{path.name}.json")
        is_new = not self._read_record()
        for existing in (path, self.record_path):
            if is_new and existing.exists() and existing.stat().st_size:
                raise DataError(
                    f"{existing} exists, and nmt has not written it.",
                    fix="Move it, or set another output file: finished lines are kept there.",
                )
        self.stream = path.open("a+b")
        self._settings = repr(settings).encode()
        self._start()
        if is_new:
            self._record()

    def _start(self) -> None:
        self._num_lines = 0  # of the input
        self._hash = hashlib.sha256(self._settings)

    def _note(self, lines: Sequence[Any]) -> None:
        self._num_lines += len(lines)
        for line in lines:
            self._hash.update(repr(line).encode("utf-8", "backslashreplace"))

    def add(self, lines: Sequence[Any]) -> None:
        """Record that the results of some more lines of the input are written."""
        self._note(lines)
        self.stream.flush()
        sync(self.path)  # before the record
        self._record()

    def _record(self) -> None:
        num_bytes = self.path.stat().st_size
        record = {"lines": self._num_lines, "bytes": num_bytes, "sha256": self._hash.hexdigest()}
        write_json(self.record_path, record)

    def _read_record(self) -> dict[str, Any]:
        """Return the record; empty if there is none, or if it is not one of nmt."""
        with suppress(OSError, ValueError):
            record = read_json(self.record_path)
            field(record, "lines", kind=int)
            field(record, "bytes", kind=int)
            return field(record, kind=dict)
        return {}

    def remaining(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Return the chunks whose results are missing: all of them if input or options differ."""
        record = self._read_record()
        read_chunks = list[Chunk]()
        while self._num_lines < record.get("lines", 0) and (chunk := next(chunks, None)):
            read_chunks.append(chunk)
            self._note(chunk[1])
        # The user may have deleted the part, but not its record.
        is_whole = self.path.stat().st_size >= record.get("bytes", 0)
        is_same = is_whole and record.get("sha256") == self._hash.hexdigest()
        if is_same and self._num_lines:
            logger.info("%s: continuing after line %s", self.path, f"{self._num_lines:,}")
            self.stream.truncate(record["bytes"])
            return chunks
        if self._num_lines:
            logger.warning("%s: starting again: it is cut, or input or options differ", self.path)
        self._start()
        self.stream.truncate(0)
        return chain(read_chunks, chunks)


@contextmanager
def resumable_output(
    path: Path | None, settings: object
) -> Iterator[tuple[IO[bytes], PartFile | None]]:
    """Open an output as `open_output` does; keep the finished part of a file if it is interrupted.

    Args:
        path: The file; None or ``-`` for standard output.
        settings: Everything that the output depends on, except for the input. Its `repr` counts.

    Yields:
        The stream, and its part file; None for what is not a file.

    Raises:
        DataError: Writing fails, now or later.
        CheckpointError: Another process writes the same file.
    """
    with open_output(path) as output:
        if path is None or is_standard(path) or (path.exists() and not path.is_file()):
            yield output, None
            return
        part_path = path.with_name(f"{path.name}.part")
        with file_lock(path.with_name(f".{part_path.name}.lock"), remove=True):
            part = PartFile(part_path, settings)
            with part.stream:
                yield part.stream, part
                part.stream.seek(0)
                shutil.copyfileobj(part.stream, output)
    part.path.unlink()
    part.record_path.unlink(missing_ok=True)
