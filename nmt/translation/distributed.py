"""``nmt translate`` under torchrun: each process translates a part of every chunk of lines.

The first process reads and writes, so that all of them together behave as one. Chunks, results and
the end of the input are collective calls that all processes make in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import reduce
from operator import add
from pathlib import Path
from typing import cast

from nmt.engine.distributed import PEER_LOST, PeerLostError, Processes, join
from nmt.errors import NmtError
from nmt.files.lines import MAX_CHUNK_LINES
from nmt.translation.stream import LineTranslator, TranslationRun, errors_only, translate_files

_SECONDS_TO_REPORT = 5


class TeammateLostError(NmtError):
    """Another process of the same translation has ended, or does not answer."""

    exit_code = PEER_LOST


def part_of(lines: Sequence[bytes], rank: int, size: int) -> tuple[int, Sequence[bytes]]:
    """Return where the part of a process begins, and the part; all parts are about as long.

    >>> [part_of([b"a", b"b", b"c"], rank, size=2) for rank in range(2)]
    [(0, [b'a']), (1, [b'b', b'c'])]
    """
    begin, end = (len(lines) * number // size for number in (rank, rank + 1))
    return begin, lines[begin:end]


class Team:
    """The processes that translate together, seen from one of them.

    Args:
        processes: Which all make the same calls.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def is_first(self) -> bool:
        """Whether this process reads and writes."""
        return self._processes.rank == 0

    def loading(self) -> AbstractContextManager[None]:
        """Let only the first process log what all of them find while they load the model."""
        return errors_only() if self._processes.rank else nullcontext()

    def translate_files(
        self,
        translate: LineTranslator,
        source: Path | None,
        output: Path | None,
        *,
        lines_at_once: int | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> TranslationRun:
        """Do what `nmt.translation.stream.translate_files` does, together.

        Only the first process opens files, shows progress and raises what is wrong with them.
        """
        processes = self._processes
        if processes.rank:
            return self._help(translate)
        is_between_chunks = True

        def translate_chunk(lines: Sequence[bytes], first_number: int) -> TranslationRun:
            nonlocal is_between_chunks
            is_between_chunks = False
            processes.share((lines, first_number))
            runs = self._translate_part(translate, lines, first_number)
            is_between_chunks = True
            return reduce(add, runs)

        try:
            together = (lines_at_once or MAX_CHUNK_LINES) * processes.size
            return translate_files(
                translate_chunk, source, output, lines_at_once=together, progress=progress
            )
        finally:
            # The others end in order, unless they are not waiting for lines: something broke.
            if is_between_chunks:
                with suppress(PeerLostError):  # no matter now: there is nothing more to ask it
                    processes.share(None)
                processes.leave()

    def _help(self, translate: LineTranslator) -> TranslationRun:
        """Translate parts of what the first process reads, until it is done."""
        num_lines, nothing = 0, cast("tuple[Sequence[bytes], int] | None", None)
        while (chunk := self._processes.share(nothing)) is not None:
            num_lines += len(chunk[0])
            self._translate_part(translate, *chunk)
        self._processes.leave()
        return TranslationRun(num_lines=num_lines)

    def _translate_part(
        self, translate: LineTranslator, lines: Sequence[bytes], first_number: int
    ) -> list[TranslationRun]:
        """Return the runs of all processes over their parts of a chunk that the first one read."""
        begin, part = part_of(lines, self._processes.rank, self._processes.size)
        return self._processes.gather(translate(part, first_number + begin))


@contextmanager
def join_team() -> Iterator[Team]:
    """Join the other processes; the first one that fails reports why.

    Raises:
        DeviceError: The processes do not find each other.
        TeammateLostError: Another one has ended without a report.
    """
    processes = join()
    try:
        yield Team(processes)
    except Exception as error:
        if not processes.is_first_to_fail():
            # As soon as one has failed torchrun ends the others: also the one that is to report.
            time.sleep(_SECONDS_TO_REPORT)
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        if isinstance(error, PeerLostError):
            raise TeammateLostError(
                "Another process of this translation has ended or does not answer "
                f"({error.cause}).",
                fix="See what ended it, then start all again.",
            ) from error
        raise
